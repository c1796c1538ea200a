"""Circuits as graphs, and the files that other tools keep them in.

Start with `graph.py` (`Node`, `Edge`, `Circuit`). `load.py` reads any file or bundled circuit, `cuts.py` turns scored
edges into a circuit, `file_graph.py` is everything a file says, and `formats/` has one module for each format. No
tensors of a model are needed here. Imports `eics.errors` and `data`.
"""
