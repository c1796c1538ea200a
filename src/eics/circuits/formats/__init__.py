"""Circuits on disk: one small module for each file format; every format is read into a `CircuitGraph`.

Start with `files.py`, which lists them; `Reader` and `Writer` in `content.py` say what a format's module offers.
"""

from eics.circuits.cuts import Dropped, cut, prune
from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.files import read_graph, write_graph

__all__ = ["CircuitGraph", "Dropped", "ModelShape", "cut", "prune", "read_graph", "write_graph"]
