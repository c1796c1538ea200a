"""auto-circuit (`.pkl`): {destination: tensor of scores}, with the sources on the last axis, in the model's order.

Destinations are hook names (`blocks.1.hook_q_input`, one row for each head) or auto-circuit's own (`A1.2.Q`, `MLP 3`,
`Resid End`). Sources are `Resid Start`, then layer by layer the heads `A0.1` and `MLP 0`. If a file scores token
positions separately, they are the first axis; an edge gets the sum over them.
"""

import re
from dataclasses import dataclass
from typing import Any

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Reader
from eics.circuits.formats.hooks import last_layer, parse_hook
from eics.circuits.graph import Edge, Kind, Node
from eics.circuits.names import shorten
from eics.errors import CircuitError

NAME = "auto-circuit"
_BY_HEAD = re.compile(r"blocks\.\d+\.hook_(q_input|k_input|v_input|attn_in)")
_ONE_HEAD = re.compile(r"A(?P<layer>\d+)\.(?P<head>\d+)(\.[QKV])?")


def read(value: Any) -> CircuitGraph:
    """Reads the scores of all edges; the file marks none as kept."""
    tables = {name: tensor.double() for name, tensor in _single_table(value).items()}
    plan = _plan(tables)
    scores: dict[Edge, float] = {}
    for name, tensor in tables.items():
        for head, row in enumerate(_rows(name, tensor, plan)):
            target = parse_hook(name, head)
            sources = plan.sources(target.node)
            if len(row) != len(sources):
                raise CircuitError(
                    f"must score {len(sources)} sources of {name}, in the model's order. Got {len(row)}."
                )
            scores |= {Edge(source, target.node, target.port): s for source, s in zip(sources, row, strict=True)}
    notes = ("Scores of single token positions were added up.",) if plan.by_position else ()
    return CircuitGraph(tuple(scores), scores=scores, shape=plan.shape, format=NAME, notes=notes)


@dataclass(frozen=True)
class _Plan:
    """The model's shape, inferred from the tensors, and whether the scores are by position."""

    shape: ModelShape
    mlps: bool
    by_position: bool

    def sources(self, target: str) -> list[str]:
        """The nodes that write before the target reads."""
        node = Node.parse(target)
        layers = self.shape.n_layers if node.layer is None else node.layer
        names = ["input"]
        for layer in range(layers):
            names += [f"a{layer}.h{head}" for head in range(self.shape.n_heads)] + [f"m{layer}"] * self.mlps
        if node.layer is not None and node.head is None and not self.shape.parallel_attn_mlp:
            names += [f"a{layers}.h{head}" for head in range(self.shape.n_heads)]
        return names


def _innermost(value: Any) -> Any:
    """The first table inside dicts of tasks and algorithms."""
    for _ in range(2):
        inner = next(iter(value.values()), None)
        if not isinstance(inner, dict):
            break
        value = inner
    return value


def _is_scores(value: Any) -> bool:
    import torch

    return bool(value) and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())


def _single_table(value: Any) -> dict[str, Any]:
    """The only table of scores in the file; if there are several, an error lists them."""
    for _ in range(2):
        if all(isinstance(inner, dict) for inner in value.values()):
            if len(value) > 1:
                raise CircuitError(
                    f"must hold the scores of one task and algorithm. It holds {shorten(value)}: save one of them."
                )
            value = next(iter(value.values()))
    if not _is_scores(value):
        raise CircuitError("must hold a dict of tensors by destination.")
    table: dict[str, Any] = value
    return table


def _plan(tables: dict[str, Any]) -> _Plan:
    end = next((name for name in tables if name == "Resid End" or last_layer(name) is not None), None)
    if end is None:
        raise CircuitError("must score the read-out: 'Resid End' or blocks.<last>.hook_resid_post. It does not.")
    by_position = tables[end].dim() == 2
    heads = max(map(_heads, tables, tables.values(), [by_position] * len(tables)))
    nodes = {name: Node.parse(parse_hook(name, 0).node) for name in tables}
    layers = 1 + max((last_layer(name) or node.layer or 0) for name, node in nodes.items())
    mlp = {node.layer: name for name, node in nodes.items() if node.kind is Kind.MLP}
    parallel = bool(mlp) and tables[mlp[min(mlp, key=lambda layer: layer or 0)]].shape[-1] == 1
    columns = 1 + layers * (heads + bool(mlp))
    # checked before any list of that length is built: names can claim any number of layers
    if tables[end].shape[-1] != columns:
        raise CircuitError(
            f"must score {columns} sources of {end}: input, then {heads} heads{' and an MLP' * bool(mlp)} in each of "
            f"{layers} layers. Got {tables[end].shape[-1]}."
        )
    return _Plan(ModelShape(layers, heads, parallel), bool(mlp), by_position)


def _heads(name: str, tensor: Any, by_position: bool) -> int:
    if match := _ONE_HEAD.fullmatch(name):
        return int(match["head"]) + 1
    one_head = tensor.dim() == 1 + by_position  # auto-circuit drops the axis of heads if there is one head
    return tensor.shape[-2] if _BY_HEAD.fullmatch(name) and not one_head else 1


def _rows(name: str, tensor: Any, plan: _Plan) -> list[list[float]]:
    """A row of scores for each head of the destination, or a single row."""
    if plan.by_position:
        tensor = tensor.sum(0)
    if tensor.dim() == 1:
        tensor = tensor[None]
    count = plan.shape.n_heads if _BY_HEAD.fullmatch(name) else 1
    if tensor.dim() != 2 or tensor.shape[0] != count:
        raise CircuitError(f"must have {count} rows of scores for {name}. Got shape {tuple(tensor.shape)}.")
    rows: list[list[float]] = tensor.tolist()
    return rows


READER = Reader("auto-circuit .pkl", ("pickle", "torch"), dict, lambda value: _is_scores(_innermost(value)), read)
