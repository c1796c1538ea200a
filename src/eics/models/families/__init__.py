"""One adapter for each family: the only code that knows a family's module names.

`adapter.py` is the base class, `weights.py` the shared pieces, `registry.py` the families.
"""
