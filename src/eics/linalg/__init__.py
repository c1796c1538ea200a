"""Linear algebra on batches of maps that never have to exist as matrices.

Start with `operators.py` (`mv`, `rmv`), then `structure.py` (what can be known of a map without multiplying by it) and
`spectrum.py`, whose `exact` holds the table of methods. `lanczos.py`, `hutchpp.py` and `smallest_singular.py` are the
estimators; `blocks.py`, `memory.py`, `precision.py` and `host_device.py` are about layout, bounds, rounding and the
GPU. Nothing here knows about circuits or models. Imports only `eics.errors`.
"""
