"""Norms, spectra and Gram matrices of a transformer's maps, without products with vectors of length T*d.

One file for each map, which registers what is known of it with `eics.linalg.structure`: `head.py` (with its terms,
norms, Gram matrices and low-rank updates in `head_*.py`), `mlp.py`, `readout.py`. Importing this package registers them
all.
"""

from eics.transformer.closed_forms import head, mlp, readout

__all__ = ["head", "mlp", "readout"]
