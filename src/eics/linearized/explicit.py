"""Explicit linear circuits: every edge has a matrix, every node an activation.

The score's definition without a language model around it: for toys, for teaching, for checking an idea, and
as the brute-force twin of the transformer code.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> W, a = rng.normal(size=(3, 4)), rng.normal(size=4)
>>> LinearCircuit(maps={"x->y": W}, activations={"x": a, "y": W @ a})
LinearCircuit(2 nodes, 1 edge, sources: x, sinks: y; 1 prompt)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import CircuitError, OptionError
from eics.linalg.operators import Dense
from eics.linearized.circuit import Entry, LinearizedCircuit, Stalk
from eics.linearized.sweep import PlainEngine

ArrayLike = Any  # a tensor, a numpy array or nested lists of numbers


class LinearCircuit:
    """A circuit given by its matrices and activations, checked when it is made.

    Args:
        maps: for each edge (as `Circuit` takes it) its matrix `rho_{u->v}`, (dim_v, dim_u); with `batched` also
            (B, dim_v, dim_u). A stalk of `T x d` counts as `T*d` numbers, position by position.
        activations: for each node `a_v`: (d,) for a stalk without positions, (T, d) for one with; with
            `batched` a batch axis comes first.
        constants: `b_v` of the nodes that have one, shaped like the activation: what the node would write if
            all that it reads were zero. Counts only under `linearization="frozen"` (a linear circuit's maps
            are the same under both).
        positions: restricts nodes to these token positions.
        batched: whether activations have a batch axis.
        dtype: the working precision.
    """

    def __init__(
        self,
        maps: Mapping[Any, ArrayLike],
        activations: Mapping[str, ArrayLike],
        *,
        constants: Mapping[str, ArrayLike] | None = None,
        positions: Mapping[str, Sequence[int]] | None = None,
        batched: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise OptionError.of("dtype", "torch.float32 or torch.float64", dtype)
        self.circuit = Circuit(maps, positions)
        self.batched = batched
        _check_names("Activations", activations, self.circuit.order, required=True)
        _check_names("Constants", constants or {}, self.circuit.order, required=False)
        self._has_positions = {}
        self.activations: dict[str, Tensor] = {}
        for node in self.circuit.order:
            tensor = _tensor(f"The activation of node {node!r}", activations[node], dtype)
            self._has_positions[node] = tensor.ndim == 2 + batched
            self.activations[node] = _as_stalk(f"The activation of node {node!r}", tensor, batched)
        self.constants = {
            node: _as_stalk(f"The constant of node {node!r}", _tensor(f"The constant of {node!r}", b, dtype), batched)
            for node, b in (constants or {}).items()
        }
        given = zip(self.circuit.edges, maps.values(), strict=True)
        self.maps = {edge: _tensor(f"The map of edge {edge}", matrix, dtype) for edge, matrix in given}
        self._check_shapes()

    @property
    def batch(self) -> int:
        """How many prompts."""
        return next(iter(self.activations.values())).shape[0]

    def as_given(self, node: str, stalk: Tensor) -> Tensor:
        """A (B, T, d) tensor of this node in the shape in which its activation came."""
        if not self._has_positions[node]:
            stalk = stalk.squeeze(1)
        return stalk if self.batched else stalk.squeeze(0)

    def linearize(self, linearization: str) -> LinearizedCircuit:
        """Each edge is an entry of its own; edges that carry nothing under this linearization are left out."""
        circuit = self.circuit.carrying(linearization)
        entries = {
            node: tuple(
                Entry(Dense(self.maps[edge]), (edge,), self.activations[edge.source]) for edge in circuit.parents[node]
            )
            for node in circuit.inner
        }
        stalks = {node: self._stalk(node, linearization == "frozen") for node in circuit.order}
        left_out = len(self.circuit.edges) - len(circuit.edges)
        return LinearizedCircuit(circuit, stalks, entries, linearization, PlainEngine, left_out)

    def _stalk(self, node: str, frozen: bool) -> Stalk:
        activation = self.activations[node]
        constant = self.constants.get(node) if frozen else None
        if constant is None:
            constant = torch.zeros_like(activation[:1])
        return Stalk(activation, constant, self._positions(node))

    def _positions(self, node: str) -> Tensor | None:
        """Row t is token t; a read-out of one row sits at the answer, the last token."""
        if not self._has_positions[node]:
            return None
        length, device = self.activations[node].shape[1], self.activations[node].device
        if length == 1 and Node.parse(node).kind is Kind.LOGITS:
            longest = max(a.shape[1] for a in self.activations.values())
            return torch.tensor([longest - 1], device=device)
        return torch.arange(length, device=device)

    def _check_shapes(self) -> None:
        batch = self.batch
        for node, activation in self.activations.items():
            if activation.shape[0] != batch:
                raise CircuitError(
                    f"All activations must have the same batch. Node {node!r} has {activation.shape[0]}, "
                    f"{self.circuit.order[0]!r} has {batch}."
                )
        for node, constant in self.constants.items():
            if constant.shape[1:] != self.activations[node].shape[1:] or constant.shape[0] not in (1, batch):
                raise CircuitError(
                    f"The constant of node {node!r} must be shaped like its activation, "
                    f"{tuple(self.activations[node].shape)}. Got {tuple(constant.shape)}."
                )
        for edge, matrix in self.maps.items():
            self._check_map(edge, matrix, batch)
        for node, kept in self.circuit.positions.items():
            length = self.activations[node].shape[1]
            if not self._has_positions[node] or max(kept) >= length:
                has = f"positions 0 to {length - 1}" if self._has_positions[node] else "no positions"
                raise CircuitError(f"Node {node!r} is restricted to positions {list(kept)} but has {has}.")

    def _check_map(self, edge: Edge, matrix: Tensor, batch: int) -> None:
        must = tuple(self.activations[node].shape[1:].numel() for node in (edge.target, edge.source))
        fits = matrix.ndim in (2, 2 + self.batched) and tuple(matrix.shape[-2:]) == must
        if not fits or (matrix.ndim == 3 and matrix.shape[0] not in (1, batch)):
            leading = f" or ({batch}, {must[0]}, {must[1]})" if self.batched else ""
            raise CircuitError(
                f"The map of edge {edge} must be (numbers of {edge.target!r}, numbers of {edge.source!r}) = "
                f"{must}{leading}. Got {tuple(matrix.shape)}: transpose it or correct an activation."
            )

    def __repr__(self) -> str:
        prompts = f"{self.batch} prompt" + ("s" if self.batch > 1 else "")
        return f"Linear{self.circuit!r}"[:-1] + f"; {prompts})"


def _check_names(what: str, given: Mapping[str, Any], nodes: Sequence[str], *, required: bool) -> None:
    unknown = [name for name in given if name not in set(nodes)]
    if unknown:
        raise CircuitError(f"{what} must be given for nodes of the circuit. Got {unknown[0]!r}: no edge touches it.")
    missing = [node for node in nodes if node not in given]
    if required and missing:
        raise CircuitError(f"{what} must be given for every node of the circuit. Node {missing[0]!r} has none.")


def _tensor(what: str, value: ArrayLike, dtype: torch.dtype) -> Tensor:
    try:
        # numpy views with negative strides (A[::-1]) have no tensor form of their own
        tensor = torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value)
        tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise CircuitError(f"{what} must be an array of numbers. Got {type(value).__name__}: {error}.") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise CircuitError(f"{what} must be an array of real numbers. Got dtype {tensor.dtype}.")
    tensor = tensor.detach().to(dtype)
    if not bool(tensor.isfinite().all()):
        where = (~tensor.isfinite()).nonzero()[0].tolist()
        raise CircuitError(f"{what} must be finite. Got {tensor[tuple(where)].item()} at index {where}.")
    return tensor


def _as_stalk(what: str, tensor: Tensor, batched: bool) -> Tensor:
    """(B, T, d), with axes of 1 put in where there is no batch or no position."""
    if tensor.ndim not in (1 + batched, 2 + batched) or tensor.numel() == 0:
        shapes = "(B, d) or (B, T, d)" if batched else "(d,) or (T, d)"
        raise CircuitError(f"{what} must be {shapes} and not empty. Got shape {tuple(tensor.shape)}.")
    if not batched:
        tensor = tensor.unsqueeze(0)
    return tensor.unsqueeze(1) if tensor.ndim == 2 else tensor
