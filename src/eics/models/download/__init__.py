"""Models that need no hub account: fetched through package registries and converted once.

`sources.py` lists them, `fetch.py` downloads one into the cache, `worlds.py` has the models bundled with the package.
"""
