"""Tables for the terminal; `layout.py` makes them fit its width. Those of `eics score` are in `score_table.py`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from eics.circuits.formats import CircuitGraph, ModelShape
from eics.circuits.graph import Circuit, Kind, Node
from eics.circuits.names import shorten
from eics.circuits.provenance import cut_sentence
from eics.cli.layout import Column, fitted
from eics.cli.terminal import console
from eics.scoring.numbers import number, percent, signed, with_error

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.bench.table import Report
    from eics.studies.damage.summary import Summary
    from eics.studies.discovery.faithfulness import Faithfulness
    from eics.studies.toy.curves import Curves
    from eics.studies.validation.analysis import Validation

_SHOWN = 8  # nodes named before "..."
_WHOLE = 99  # characters that a name to be typed keeps: all


def curve_table(curves: "Curves", width: int | None = None) -> "Table":
    """The curve of the paper's toy, with standard errors."""
    columns = [Column("tau", [f"{tau:.1f}" for tau in curves.taus])]
    for name, head in (("eics", "EICS"), ("c_sh", "C_sh"), ("dei_norm", "dEI_norm")):
        pairs = zip(curves.mean(name), curves.stderr(name), strict=True)
        columns.append(Column(head, [with_error(mean, error) for mean, error in pairs]))
    return _fit("Paper's toy: mean ± standard error", columns, width)


def faithfulness_table(measured: "Faithfulness", title: str, width: int | None = None) -> "Table":
    """One row per circuit: its size and how much of the model's metric it keeps."""
    points = measured.points
    intervals = [f"{number(p.faithfulness.low)} to {number(p.faithfulness.high)}" for p in points]
    columns = [
        Column("circuit", [point.name for point in points], names=True),
        Column("edges", [f"{point.edges:,}" for point in points]),
        Column("share of all", [percent(point.share) for point in points], rank=1),
        Column("faithfulness", [number(point.faithfulness.value) for point in points]),
        Column("95% interval", intervals),
    ]
    return _fit(title, columns, width)


def damage_table(summary: "Summary", width: int | None = None) -> "Table":
    """What the strongest dose of each kind does to the main measures, on the circuit and outside it."""
    from eics.studies.damage.words import REPORTED

    rows = []
    for measure in summary.measures:
        for kind in summary.kinds if measure.column.split(".")[-1] in REPORTED else ():
            on, off = (summary.curve(measure.column, kind, where)[-1:] for where in ("circuit", "outside"))
            cells = [f"{signed(p[0].change.value)} ({number(p[0].auroc.value)})" if p else "" for p in (on, off)]
            if on:
                rows.append((measure.label, kind, number(on[0].strength, trim=True), *cells))
    heads = ("measure", "kind", "dose", "circuit", "outside")
    columns = [
        Column(head, [row[index] for row in rows], names=head in ("measure", "kind"), least=14)
        for index, head in enumerate(heads)
    ]
    return _fit("Change from undamaged (AUROC) at the strongest dose", columns, width)


def validation_table(validation: "Validation", width: int | None = None) -> "Table":
    """One row per score: how well it separates correct from wrong answers on the test split."""
    correct, wrong = validation.counts.test
    results = validation.results.values()
    differences = ["" if r.difference is None else str(r.difference) for r in results]
    columns = [
        Column("score", [result.kind.title for result in results], names=True, least=26),
        Column("AUROC (95%)", [str(result.auroc) for result in results]),
        Column("less max-probability's", differences, rank=1),
        Column("p (Holm)", [number(result.p_value) for result in results], rank=2),
    ]
    return _fit(f"Test split: {correct} correct, {wrong} wrong", columns, width)


def bench_table(report: "Report", width: int | None = None) -> "Table":
    """What each row of the benchmark costs."""
    from eics.studies.bench.table import headings, lines, title

    columns = [
        Column(
            head,
            [line[index] for line in lines(report)],
            rank={"MB": 1, "FLOPs": 2, "first": 3, "reached": 4, "must/goal": 5, "JVP+VJP": 6}.get(head, 0),
            names=head == "row",
            folds=head == "reached",
            least=20,
        )
        for index, head in enumerate(headings(report))
        if head != "faster" or any(line[index] for line in lines(report))
    ]
    return _fit(title(report), columns, width)


def layer_table(circuit: Circuit, title: str, width: int | None = None) -> "Table":
    """One row per layer: its heads, its MLP, and the number of edges into them by port."""
    rows = list(_rows(circuit))
    counts = [Counter(edge.port or "whole" for name in names for edge in circuit.parents[name]) for _, names in rows]
    columns = [
        Column("layer", [label for label, _ in rows]),
        Column("nodes", [shorten(names, _SHOWN) for _, names in rows], folds=True),
        *(
            Column(f"in: {port}" if port == "q" else port, [str(count[port] or "") for count in counts])
            for port in ("q", "k", "v", "whole")
        ),
    ]
    return _fit(title, columns, width)


def circuits_table(graphs: Mapping[str, CircuitGraph], width: int | None = None) -> "Table":
    """One row per circuit: the model and the task that it was found on, its size and its recorded faithfulness."""
    kept = [graph.circuit() for graph in graphs.values()]
    columns = [
        Column("circuit", list(graphs), names=True),
        Column("model", [str(graph.metadata.get("model", "-")) for graph in graphs.values()], text=True),
        Column("nodes", [f"{len(circuit.order):,}" for circuit in kept]),
        Column("edges", [f"{len(circuit.edges):,}" for circuit in kept]),
        Column("faithfulness", [_recorded(graph) for graph in graphs.values()]),
    ]
    return _fit("Bundled circuits", columns, width)


def models_table(models: Sequence[tuple[str, str, str]], width: int | None = None) -> "Table":
    """One row per model that needs no hub account: its name, whether it is here, and what it is."""
    names, states, abouts = zip(*models, strict=True)
    columns = [
        Column("model", names, names=True, least=_WHOLE),
        Column("state", states, names=True, least=_WHOLE),
        Column("what it is", abouts, folds=True),
    ]
    return _fit("Models that need no hub account", columns, width)


def families_table(families: Mapping[str, str], width: int | None = None) -> "Table":
    """One row per architecture, by the `model_type` of its config.json."""
    columns = [
        Column("model_type", list(families), names=True, least=_WHOLE),
        Column("what it is", list(families.values()), folds=True),
    ]
    return _fit("Architectures that can be scored", columns, width)


def _recorded(graph: CircuitGraph) -> str:
    """The faithfulness in a circuit's file, under corrupted ablation if that was measured."""
    measured = graph.metadata.get("faithfulness")
    estimates = measured if isinstance(measured, dict) else {}
    ablation = next((name for name in ("corrupted", "mean", "zero") if isinstance(estimates.get(name), dict)), None)
    if ablation is None:
        return "-"
    value, low, high = (estimates[ablation].get(key) for key in ("value", "low", "high"))
    if not all(isinstance(estimate, int | float) for estimate in (value, low, high)):
        return "-"
    return f"{number(value)} ({number(low)} to {number(high)})" + ("" if ablation == "corrupted" else f", {ablation}")


def circuit_sentences(graph: CircuitGraph, circuit: Circuit) -> Iterator[str]:
    """Sizes, sources, sinks, the models that fit, and what the file says about itself."""
    kinds = Counter(Node.parse(name).kind for name in circuit.order)
    names = {Kind.HEAD: ("head", "heads"), Kind.MLP: ("MLP", "MLPs")}
    counted = ", ".join(
        f"{kinds[kind]} {names.get(kind, (kind.value, kind.value))[kinds[kind] > 1]}" for kind in Kind if kinds[kind]
    )
    yield f"{len(circuit.order)} nodes ({counted}), {len(circuit.edges)} edges of {len(graph.edges)} in the file."
    yield f"Sources: {shorten(circuit.sources, _SHOWN)}. Sinks: {shorten(circuit.sinks, _SHOWN)}."
    yield _shape(graph, circuit)
    if graph.scores:
        scores = circuit.scores.values()
        extent = f", from {number(min(scores), trim=True)} to {number(max(scores), trim=True)}" if scores else ""
        yield f"{len(scores)} of its edges have scores{extent}."
    if circuit.positions:
        nodes = shorten(circuit.positions, _SHOWN)
        yield f"{len(circuit.positions)} nodes are restricted to token positions: {nodes}."
    for key in ("model", "task", "about", "command"):
        if isinstance(graph.metadata.get(key), str):
            yield f"{key.capitalize()}: {graph.metadata[key]}"
    if cut := cut_sentence(graph.metadata):
        yield cut
    measured = graph.metadata.get("faithfulness")
    if isinstance(measured, dict):
        values = [
            f"{name} {number(v['value'])}" for name, v in measured.items() if isinstance(v, dict) and "value" in v
        ]
        yield f"Faithfulness on {measured.get('task')}, by ablation: {', '.join(values)}."


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


def _fit(title: str, columns: Sequence[Column], width: int | None) -> "Table":
    return fitted(title, columns, width or console().width)
