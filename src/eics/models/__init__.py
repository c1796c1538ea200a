"""Transformers models, described as weights and a few numbers, the same for every family.

Start with `spec.py`, the description that every later room reads, and `families/`, one small adapter for each family: a
new family is a new file there (docs/add-a-family.md). `base.py` is the adapted model, `watch.py` notices that weights
have changed, `fingerprint.py` names them in records, `load.py` reads them from disk, `download/` fetches models through
package registries, `prompts.py` reads and tokenizes prompts. Imports `linalg`, `circuits` and `data`.
"""
