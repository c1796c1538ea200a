"""One adapter for each family: the only files that know a family's module names.

`adapter.py` is the base class, `weights.py` the shared pieces, `registry.py` the list of families.
"""
