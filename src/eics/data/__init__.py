"""What ships with the package: circuits, tasks, labelled prompts and small trained models ("worlds").

Start with `bundled.py`, which finds a file by its name. `scripts/make_world.py`, `make_tasks.py` and `make_circuits.py`
wrote everything else here. Imports nothing but `eics.errors`; every other room may read from it.
"""
