"""The table and the sentences of `eics circuit show`, at most 80 columns wide."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from rich.markup import escape

from eics.circuits.formats import CircuitGraph, ModelShape
from eics.circuits.graph import Circuit, Kind, Node

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 8  # names before "..."


def layer_table(circuit: Circuit, title: str) -> "Table":
    """One row per layer: its heads, its MLP, and the number of edges into them by port."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=escape(title), box=SIMPLE, title_justify="left", pad_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column("nodes", overflow="fold")
    for port in ("q", "k", "v", "whole"):
        table.add_column(f"in: {port}" if port == "q" else port, justify="right", no_wrap=True)
    for label, names in _rows(circuit):
        ports = Counter(edge.port or "whole" for name in names for edge in circuit.parents[name])
        table.add_row(label, escape(_shortened(names)), *(str(ports[port] or "") for port in ("q", "k", "v", "whole")))
    return table


def sentences(graph: CircuitGraph, circuit: Circuit) -> Iterator[str]:
    """Sizes, sources, sinks, the models that fit, and what the file says about itself."""
    kinds = Counter(Node.parse(name).kind for name in circuit.order)
    counted = ", ".join(f"{kinds[kind]} {kind.value}" for kind in Kind if kinds[kind])
    yield f"{len(circuit.order)} nodes ({counted}), {len(circuit.edges)} edges of {len(graph.edges)} in the file."
    yield f"Sources: {_shortened(circuit.sources)}. Sinks: {_shortened(circuit.sinks)}."
    yield _shape(graph, circuit)
    if graph.scores:
        scores = circuit.scores.values()
        extent = f", from {min(scores):.4g} to {max(scores):.4g}" if scores else ""
        yield f"{len(scores)} of its edges have scores{extent}."
    if circuit.positions:
        nodes = _shortened(list(circuit.positions))
        yield f"{len(circuit.positions)} nodes are restricted to token positions: {nodes}."
    for key in ("model", "task", "about", "command"):
        if isinstance(graph.metadata.get(key), str):
            yield f"{key.capitalize()}: {graph.metadata[key]}"
    measured = graph.metadata.get("faithfulness")
    if isinstance(measured, dict):
        values = [f"{name} {v['value']:.2f}" for name, v in measured.items() if isinstance(v, dict) and "value" in v]
        yield f"Faithfulness on {measured.get('task')}, by ablation: {', '.join(values)}."


def _rows(circuit: Circuit) -> Iterator[tuple[str, list[str]]]:
    """Labelled rows of nodes in the order in which a model computes them; nodes of no transformer come last."""
    layers: dict[tuple[float, str], list[str]] = {}
    for name in circuit.order:
        layers.setdefault(_row_key(Node.parse(name)), []).append(name)
    for (_, label), names in sorted(layers.items()):
        yield label, sorted(names, key=_within_row)


def _row_key(node: Node) -> tuple[float, str]:
    if node.layer is not None:
        return float(node.layer), str(node.layer)
    return {Kind.INPUT: (-1.0, ""), Kind.LOGITS: (inf, "")}.get(node.kind, (inf, "other"))


def _within_row(name: str) -> tuple[float, str]:
    head = Node.parse(name).head
    return (inf if head is None else head, name)


def _shape(graph: CircuitGraph, circuit: Circuit) -> str:
    shape = graph.shape
    if shape is not None:
        width = f", width {shape.d_model}" if shape.d_model else ""
        parallel = ", attention and MLP in parallel" if shape.parallel_attn_mlp else ""
        return f"Made for a model with {shape.n_layers} layers of {shape.n_heads} heads{width}{parallel}."
    smallest = ModelShape.smallest(circuit.order)
    if smallest is None:
        return "It fits no transformer: not all of its nodes are input, a<layer>.h<head>, m<layer> or logits."
    return f"It fits models with at least {smallest.n_layers} layers of at least {smallest.n_heads} heads."


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
