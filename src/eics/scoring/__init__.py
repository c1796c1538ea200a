"""The score: from prompts to results.

Start with `batch.py`, Algorithm 1 of the paper from check to assembled result; `api.py` is `eics.score`. `sheaf.py` has
equation (2), `emergence.py` equation (3), `formula.py` equation (7). `options.py`, `result.py` and `records.py` are
what users choose, get and save; `calibration/` learns from a reference set, `baselines/` are the scores to compare
with, `laplacian.py` the sheaf's spectrum, `cuda_graphs.py` replays batches on a GPU. Imports `transformer` and
everything before it.
"""
