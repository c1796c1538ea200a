"""Experiments on scores, each a folder that a command of the same name runs.

`discovery/` finds circuits and measures their faithfulness, `damage/` breaks nodes one at a time, `tracing/` reads a
text token by token, `tracking/` follows the score over training and circuit size, `validation/` is the paper's protocol
on labelled prompts, `toy/` its six-node example, `bench/` the cost in forward-equivalents. Start with `statistics.py`
and `run_folder.py`, which all of them share. Imports every room but `cli`.
"""
