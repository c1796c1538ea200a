"""One adapter for each family: the only files that know a family's module names."""
