"""Sources of labelled images beside a folder per class: manifests, tar shards, parquet and Arrow files."""
