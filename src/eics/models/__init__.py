"""Transformers models, described: weights and a few numbers, with the family forgotten.

Start with `spec.py`, the description that everything after reads, and `families/`, one small adapter for each family: a
new one is a new file there (docs/add-a-family.md). `load.py` reads weights from disk, `download/` fetches models
through the package registries, `prompts.py` makes tokens. Imports `linalg`, `circuits` and `data`.
"""
