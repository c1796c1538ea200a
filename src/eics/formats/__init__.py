"""Circuits on disk: one small module for each file format, and what every format becomes, a `CircuitGraph`."""

from eics.formats.cuts import Dropped, cut, prune
from eics.formats.files import read_graph, write_graph
from eics.formats.graph import CircuitGraph, ModelShape

__all__ = ["CircuitGraph", "Dropped", "ModelShape", "cut", "prune", "read_graph", "write_graph"]
