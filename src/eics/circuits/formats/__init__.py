"""Circuits on disk: one small module for each file format; every format is read into a `CircuitGraph`.

Start with `files.py`; `seam.py` says what a format's module offers, `registry.py` lists them.
"""

from eics.circuits.cuts import Dropped, cut, prune
from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.files import read_graph, write_graph

__all__ = ["CircuitGraph", "Dropped", "ModelShape", "cut", "prune", "read_graph", "write_graph"]
