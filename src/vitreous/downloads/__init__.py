"""Where bytes come from: the cache, public mirrors, package registries."""
