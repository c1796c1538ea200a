"""Tables for the terminal, at most 80 columns wide."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from eics.circuits.formats import CircuitGraph, ModelShape
from eics.circuits.graph import Circuit, Kind, Node
from eics.circuits.names import shorten
from eics.scoring.result import Score

if TYPE_CHECKING:
    from eics.studies.damage.summary import Summary
    from eics.studies.discovery.faithfulness import Faithfulness
    from eics.studies.toy.curves import Curves
    from eics.studies.validation.analysis import Validation

_WORST = 3  # edges or nodes named in a row
_BARS = 8  # edges of a single prompt
_SHOWN = 8  # nodes named before "..."
_BAR = 24  # columns of the longest bar


def curve_table(curves: "Curves") -> Table:
    """The curve of the paper's toy, with standard errors."""
    table = _table("tau", "EICS", "C_sh", "dEI_norm", title="Paper's toy: mean ± standard error")
    for row, tau in enumerate(curves.taus):
        cells = [f"{curves.mean(n)[row]:.4f} ± {curves.stderr(n)[row]:.4f}" for n in ("eics", "c_sh", "dei_norm")]
        table.add_row(f"{tau:.1f}", *cells)
    return table


def score_table(scores: Sequence[Score], title: str) -> Table:
    """One row per prompt: the score, its components, and the edges or nodes that contribute most to C_sh."""
    by_node = any(score.nodes for score in scores)
    table = _table("id", "EICS", "C_sh", "dEI", "dEI_norm", title=title)
    table.add_column("status", no_wrap=True)
    table.add_column(f"worst {'nodes' if by_node else 'edges'} of C_sh", overflow="fold")
    for score in scores:
        numbers = [_cell(getattr(score, name)) for name in ("eics", "c_sh", "dei", "dei_norm")]
        table.add_row(escape(str(score.id)), *numbers, score.status, escape(_worst(score)))
    return table


def faithfulness_table(measured: "Faithfulness", title: str) -> Table:
    """One row per circuit: its size and how much of the model's metric it keeps."""
    table = _table("circuit", "edges", "share of all", "faithfulness", "95% interval", title=escape(title))
    for point in measured.points:
        estimate = point.faithfulness
        interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
        table.add_row(point.name, f"{point.edges:,}", f"{point.share:.2%}", f"{estimate.value:.3f}", interval)
    return table


def damage_table(summary: "Summary") -> Table:
    """What the strongest dose of each kind does to the main measures, on the circuit and outside it."""
    from eics.studies.damage.words import REPORTED

    title = "Change from undamaged (AUROC) at the strongest dose"
    table = _table("measure", "kind", "dose", "circuit", "outside", title=title)
    for measure in summary.measures:
        for kind in summary.kinds if measure.column.split(".")[-1] in REPORTED else ():
            on, off = (summary.curve(measure.column, kind, where)[-1:] for where in ("circuit", "outside"))
            cells = [f"{point.change.value:+.3g} ({point.auroc.value:.2f})" for point in (*on, *off)]
            if on:
                table.add_row(measure.label, kind, f"{on[0].strength:g}", *cells)
    return table


def edge_bars(score: Score) -> Table | None:
    """A bar for each of the worst edges of one prompt, or None if the prompt is consistent."""
    if score.c_sh is None or score.is_consistent or not score.edges:
        return None
    shown = score.edges[:_BARS]
    left = len(score.edges) - len(shown)
    title = "Worst edges: share of the squared residual" + (f" ({left} more are not shown)" if left else "")
    table = _table(title=title)
    table.add_column("edge", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("share", "residual", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for edge in shown:
        length = round(_BAR * 8 * max(0.0, edge.share) / max(shown[0].share, 1e-300))
        bar = "█" * (length // 8) + ("", *"▏▎▍▌▋▊▉")[length % 8]
        cosine = "" if edge.cosine is None else f"{edge.cosine:.2f}"
        table.add_row(
            escape(str(edge)), f"[magenta]{bar}[/magenta]", f"{edge.share:.1%}", f"{edge.residual:.3g}", cosine
        )
    return table


def validation_table(validation: "Validation") -> Table:
    """One row per score: how well it separates correct from wrong answers on the test split."""
    correct, wrong = validation.counts.test
    table = _table(title=f"Test split: {correct} correct, {wrong} wrong")
    for name in ("score", "AUROC (95%)", "less max-probability's", "p (Holm)"):
        table.add_column(name)
    for result in validation.results.values():
        difference = "" if result.difference is None else str(result.difference)
        p_value = "" if result.p_value is None else f"{result.p_value:.3f}"
        table.add_row(result.kind.title, str(result.auroc), difference, p_value)
    return table


def layer_table(circuit: Circuit, title: str) -> Table:
    """One row per layer: its heads, its MLP, and the number of edges into them by port."""
    table = _table("layer", title=escape(title))
    table.add_column("nodes", overflow="fold")
    for port in ("q", "k", "v", "whole"):
        table.add_column(f"in: {port}" if port == "q" else port, justify="right", no_wrap=True)
    for label, names in _rows(circuit):
        ports = Counter(edge.port or "whole" for name in names for edge in circuit.parents[name])
        table.add_row(
            label, escape(shorten(names, _SHOWN)), *(str(ports[port] or "") for port in ("q", "k", "v", "whole"))
        )
    return table


def circuit_sentences(graph: CircuitGraph, circuit: Circuit) -> Iterator[str]:
    """Sizes, sources, sinks, the models that fit, and what the file says about itself."""
    kinds = Counter(Node.parse(name).kind for name in circuit.order)
    counted = ", ".join(f"{kinds[kind]} {kind.value}" for kind in Kind if kinds[kind])
    yield f"{len(circuit.order)} nodes ({counted}), {len(circuit.edges)} edges of {len(graph.edges)} in the file."
    yield f"Sources: {shorten(circuit.sources, _SHOWN)}. Sinks: {shorten(circuit.sinks, _SHOWN)}."
    yield _shape(graph, circuit)
    if graph.scores:
        scores = circuit.scores.values()
        extent = f", from {min(scores):.4g} to {max(scores):.4g}" if scores else ""
        yield f"{len(scores)} of its edges have scores{extent}."
    if circuit.positions:
        nodes = shorten(circuit.positions, _SHOWN)
        yield f"{len(circuit.positions)} nodes are restricted to token positions: {nodes}."
    for key in ("model", "task", "about", "command"):
        if isinstance(graph.metadata.get(key), str):
            yield f"{key.capitalize()}: {graph.metadata[key]}"
    measured = graph.metadata.get("faithfulness")
    if isinstance(measured, dict):
        values = [f"{name} {v['value']:.2f}" for name, v in measured.items() if isinstance(v, dict) and "value" in v]
        yield f"Faithfulness on {measured.get('task')}, by ablation: {', '.join(values)}."


def reasons(scores: Sequence[Score]) -> list[str]:
    """Each reason that a scored record gives, once, after the prompts that it holds for."""
    prompts: dict[str, list[str]] = {}
    for score in scores:
        if score.reason and score.status != "failed":
            prompts.setdefault(score.reason, []).append(str(score.id))
    return [f"{', '.join(ids)}: {reason}" for reason, ids in prompts.items()]


def _worst(score: Score) -> str:
    if score.status == "failed":
        return str(score.reason)
    if score.is_consistent:
        return "none: consistent to rounding"
    return ", ".join(f"{term}:{term.share:.0%}" for term in (score.nodes or score.edges)[:_WORST])


def _rows(circuit: Circuit) -> Iterator[tuple[str, list[str]]]:
    """Labelled rows of nodes in the order in which a model computes them; nodes of no transformer come last."""
    layers: dict[tuple[float, str], list[tuple[float, str]]] = {}
    for name in circuit.order:
        node = Node.parse(name)
        key = {Kind.INPUT: (-1.0, ""), Kind.LOGITS: (inf, "")}.get(node.kind, (inf, "other"))
        if node.layer is not None:
            key = (node.layer, str(node.layer))
        layers.setdefault(key, []).append((inf if node.head is None else node.head, name))
    for (_, label), members in sorted(layers.items()):
        yield label, [name for _, name in sorted(members)]


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


def _table(*numbers: str, title: str) -> Table:
    table = Table(title=title, box=SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"
