"""What ships with the package (circuits, tasks, labelled prompts, small trained models), and how files are written.

`bundled.py` finds a file of the package by its name; `scripts/make_world.py`, `make_tasks.py` and `make_circuits.py`
wrote them. `files.py` writes files that appear whole, and rows that survive a kill; `outputs.py` says which files a
command may write; `locks.py` keeps a second process out; `resume.py` says whether a run may be continued. Imports
nothing but `eics.errors`; every other room may use it.
"""
