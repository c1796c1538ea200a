"""Circuits as graphs, and the files that other tools keep them in.

Start with `graph.py` (`Circuit`; nodes and edges are in `names.py`). `load.py` reads any circuit file or bundled
circuit, `cuts.py` turns scored edges into a circuit, `file_graph.py` holds everything a circuit file says, and
`formats/` has one module for each format. No model is needed here. Imports `eics.errors` and `data`.
"""
