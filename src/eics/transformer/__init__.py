"""A transformer at one forward pass: what its nodes read and wrote, and their linear maps in closed form.

Start with `forward.py` (one pass, recorded), then `linearize.py`, which turns it into a `LinearizedCircuit`. `norm.py`,
`attention.py`, `head.py`, `mlp.py` and `readout.py` are the maps; `closed_forms/` holds what is known of them without a
product, `fast_sweep/` the engine that exploits the structure of heads. `adapt.py` and `check.py` accept a model and
prove its adapter; `interventions/` change what nodes write. Imports `linearized`, `models` and everything before them.
"""
