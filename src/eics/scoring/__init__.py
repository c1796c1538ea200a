"""The score: from prompts to results.

Start with `batch.py`, Algorithm 1 of the paper from check to assembled result; `api.py` is `eics.score`. Equation (1)
is `coboundary.py`, (2) `sheaf_term` in `sheaf.py`, (3) `emergence_spectra` in `emergence.py` on the maps of `parts.py`,
(7) `formula.py`. `job.py` and `checks.py` are what a batch needs to know, `computed.py` holds its tensors, and
`assemble.py` makes results of them. `options.py`, `result.py` and `records.py` are what users choose, get and save;
`calibration/` learns from a reference set, `baselines/` are the scores to compare with, `cuda_graphs.py` replays
batches on a GPU. Imports `transformer` and everything before it.
"""
