"""Circuits on disk: one small module for each file format, and what every format becomes, a `CircuitGraph`."""

from eics.circuits.cuts import Dropped, cut, prune
from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.files import read_graph, write_graph

__all__ = ["CircuitGraph", "Dropped", "ModelShape", "cut", "prune", "read_graph", "write_graph"]
