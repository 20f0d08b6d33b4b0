"""Downloads: atomic writes, checksums, locks, the cache, mirrors and package registries."""
