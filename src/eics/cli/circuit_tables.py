"""What `eics circuit show` prints, none of it wider than 80 columns."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markup import escape

from eics.circuits.formats import CircuitGraph, ModelShape
from eics.circuits.graph import Circuit, Kind, Node

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 8  # names before "..."


def layer_table(circuit: Circuit, title: str) -> "Table":
    """One row for each layer: its heads, its MLP, and the edges into them by port."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=escape(title), box=SIMPLE, title_justify="left", pad_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column("nodes", overflow="fold")
    for port in ("q", "k", "v", "whole"):
        table.add_column(f"in: {port}" if port == "q" else port, justify="right", no_wrap=True)
    for label, names in _rows(circuit):
        ports = Counter(edge.port or "whole" for name in names for edge in circuit.parents[name])
        shown = ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
        table.add_row(label, escape(shown), *(str(ports[port] or "") for port in ("q", "k", "v", "whole")))
    return table


def sentences(graph: CircuitGraph, circuit: Circuit) -> Iterator[str]:
    """What the table does not say."""
    kinds = Counter(Node.parse(name).kind for name in circuit.order)
    counted = ", ".join(f"{kinds[kind]} {kind.value}" for kind in Kind if kinds[kind])
    yield f"{len(circuit.order)} nodes ({counted}), {len(circuit.edges)} edges of {len(graph.edges)} in the file."
    yield f"Sources: {_some(circuit.sources)}. Sinks: {_some(circuit.sinks)}."
    yield _shape(graph, circuit)
    if graph.scores:
        values = circuit.scores.values()
        of_kept = f", from {min(values):.4g} to {max(values):.4g}" if values else ""
        yield f"{len(circuit.scores)} of its edges have scores{of_kept}."
    if circuit.positions:
        yield f"{len(circuit.positions)} nodes are restricted to token positions: {_some(tuple(circuit.positions))}."
    for key in ("model", "task", "about", "command"):
        if isinstance(graph.metadata.get(key), str):
            yield f"{key.capitalize()}: {graph.metadata[key]}"
    measured = graph.metadata.get("faithfulness")
    if isinstance(measured, dict):
        kept = [f"{name} {v['value']:.2f}" for name, v in measured.items() if isinstance(v, dict) and "value" in v]
        yield f"Faithfulness on {measured.get('task')}, by ablation: {', '.join(kept)}."


def _rows(circuit: Circuit) -> Iterator[tuple[str, list[str]]]:
    """Nodes in the order in which a model computes them; those of no model last."""
    layers: dict[tuple[float, str], list[str]] = {}
    for name in circuit.order:
        node = Node.parse(name)
        place = node.layer if node.layer is not None else {Kind.INPUT: -1.0, Kind.LOGITS: float("inf")}.get(node.kind)
        label = "" if node.layer is None else str(node.layer)
        key = (float("inf"), "other") if place is None else (float(place), label)
        layers.setdefault(key, []).append(name)
    for (_, label), names in sorted(layers.items()):
        yield label, sorted(names, key=_within)


def _within(name: str) -> tuple[int, str]:
    node = Node.parse(name)
    return (node.head if node.head is not None else 1 << 30, name)


def _shape(graph: CircuitGraph, circuit: Circuit) -> str:
    shape = graph.shape
    if shape is not None:
        width = f", width {shape.d_model}" if shape.d_model else ""
        parallel = ", attention and MLP in parallel" if shape.parallel_attn_mlp else ""
        return f"Made for a model with {shape.n_layers} layers of {shape.n_heads} heads{width}{parallel}."
    smallest = ModelShape.smallest(circuit.order)
    if smallest is None:
        return "It fits no transformer: some of its nodes are not input, a<layer>.h<head>, m<layer> or logits."
    return f"It fits models with at least {smallest.n_layers} layers of at least {smallest.n_heads} heads."


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
