"""A text, token by token: which node wrote something unusual at which token, while it is read or while it is generated.

`run.py` has `trace`, the conductor; `texts.py` traces whole texts in batches and `generation.py` those that the model
goes on with, token by token. `result.py` is what comes out, `words.py` what it says in a sentence, `trace_file.py` how
it is kept on disk and continued. What is usual at a position is learned in `scoring/calibration/sheaf/positions.py`.
"""
