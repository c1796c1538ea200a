"""Models that need no hub account: fetched through the package registries and converted once."""
