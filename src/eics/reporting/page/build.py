"""Collects all that the report shows in one small object of JSON types, for the page of `shell.py`.

What records have in common is stored once: circuits with their layouts, prompts with their tokens (two presets give two
records each), the grid of alphas. Edges and nodes are lists in the order of their circuit. An edge takes three letters,
for its share and its cosine, and a large share a fourth; its residual is that share of the record's `total`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eics import __version__
from eics.circuits.graph import Edge
from eics.data.files import write_text
from eics.reporting.page import shell
from eics.reporting.page.circuits import Circuits
from eics.reporting.page.details import finite, packed, token_of
from eics.reporting.page.packing import Packed, halves, pairs, short, shorts
from eics.reporting.page.runs import Origin, differences, find_runs, last_name
from eics.reporting.page.shell import check_report_path
from eics.scoring.result import EdgeTerm, NodeTerm, Score
from eics.scoring.verdict import verdict

NUMBERS = ("eics", "c_sh", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile", "p_value", "p_value_mean")
"""The numbers of a record, in the order in which the page stores them."""

_SHOWN_DIAGNOSTICS = ("length", "share_position_0", "kernel_dim", "lambda2", "spectral_gap", "projection_distance")

_Shared = dict[str, tuple[int, Any]]


def write_report(
    scores: Iterable[Score],
    path: str | Path,
    *,
    notes: Sequence[str] = (),
    source: str | None = None,
    origins: Sequence[Origin] | None = None,
) -> None:
    """Writes the report of results to an HTML file, which appears whole, in place of an earlier one.

    Args:
        scores: results of `eics.score` or `eics.read_records`.
        path: the file to write, ending in .html.
        notes: remarks to show at the top of the page, such as lines that could not be read.
        source: name of the file that the results came from.
        origins: file and version of each result, if they are not all of one file and of this version.
    """
    check_report_path(Path(path))
    data = report_data(scores, notes=notes, source=source, origins=origins)
    write_text(path, build_page(data))


def build_page(data: dict[str, Any]) -> str:
    """The page as text."""
    return shell.build_page("report", data)


def report_data(
    scores: Iterable[Score],
    *,
    notes: Sequence[str] = (),
    source: str | None = None,
    origins: Sequence[Origin] | None = None,
) -> dict[str, Any]:
    """The data of a page, from results alone."""
    listed = list(scores)
    circuits = Circuits()
    for score in listed:
        circuits.see(score)
    runs = find_runs(listed, circuits, origins)
    drawn = [circuit.drawn() for circuit in circuits.seen]
    graphs = [graph for graph, _ in drawn]
    prompts: _Shared = {}
    grids: _Shared = {}
    records = [
        {"promptIndex": _number(prompts, _prompt(score)), "run": number}
        | _record(score, circuits.seen[run.circuit].order, graphs[run.circuit], grids)
        for number, run in enumerate(runs)
        for score in run.scores
    ]
    models = sorted({last_name(score.model) for score in listed if score.model})
    names = [*models, *sorted({last_name(graph["name"]) for graph in graphs if graph["name"]})]
    return {
        "title": " · ".join(["EICS", *(names or [source or "a run"])]),
        "source": source,
        "eics": __version__,
        "notes": [*notes, *(note for _, remarks in drawn for note in remarks)],
        "numbers": list(NUMBERS),
        "circuits": graphs,
        "runs": [run.described(graphs[run.circuit]) for run in runs],
        "differences": differences(runs, circuits),
        "grids": [grid for _, grid in grids.values()],
        "prompts": [prompt for _, prompt in prompts.values()],
        "records": records,
    }


def _number(shared: _Shared, item: Any) -> int:
    """The number of an item that many records share; it is stored if it is new."""
    return shared.setdefault(repr(item), (len(shared), item))[0]


def _prompt(score: Score) -> dict[str, Any]:
    """What records of the same prompt have in common; the text is left out if the tokens spell it."""
    return _without_none(
        id=score.id,
        prompt=score.prompt if score.prompt != "".join(score.tokens or ()) else None,
        tokens=score.tokens,
        answer=score.answer,
        label=None if score.label is None else str(score.label),
    )


def _record(score: Score, order: Mapping[Edge, int], circuit: Mapping[str, Any], grids: _Shared) -> dict[str, Any]:
    nodes = [node[0] for node in circuit["nodes"]]
    consistent = score.is_consistent
    propagated = score.residual == "propagated"  # shares are then not of the squared residuals
    return _without_none(
        status=score.status,
        reason=score.reason,
        alpha=None if score.alpha is None else short(score.alpha),
        values=shorts([getattr(score, name) for name in NUMBERS]),
        errors=_errors(score),
        more=_diagnostics(score) or None,
        consistent=consistent or None,
        **_edges(score, order, blame=not consistent),
        norm=_by_name(score.norms, nodes),
        ei=_by_name(score.ei_parts, nodes),
        branch=_by_name(score.ei_parts, [str(edge) for edge in order]) if score.parts != "nodes" else None,
        nodeShare=_by_name({term.node: 0.0 if consistent else term.share for term in score.nodes}, nodes),
        nodeResidual=_by_name({term.node: term.residual for term in score.nodes}, nodes) if propagated else None,
        nodeTotal=None if propagated else _total(score.nodes),
        nodeZ=_by_name(_of_nodes(score, "z"), nodes),
        **_judged(score, nodes),
        usual=_percentiles(score),
        curve=_curve(score, grids),
        predictions=_predictions(score) or None,
        warnings=[str(warning.get("text", "")) for warning in score.warnings] or None,
        details=packed(score.details),
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _edges(score: Score, order: Mapping[Edge, int], *, blame: bool) -> dict[str, Any]:
    """Shares with cosines, packed relative to the largest share (`most`), and the `total` that they are shares of."""
    shares: list[float | None] = [None] * len(order)
    cosines: list[float | None] = [None] * len(order)
    for term in score.edges:
        index = order[Edge(term.source, term.target, term.port)]
        shares[index], cosines[index] = term.share if blame else 0.0, term.cosine
    most = max((share for share in shares if share is not None), default=0.0)
    angles = any(cosine is not None for cosine in cosines)
    letters, fine = pairs(shares, cosines, most)
    return _without_none(
        total=_total(score.edges), most=short(most), angles=angles or None, edges=letters, fine=fine or None
    )


def _total(terms: Sequence[EdgeTerm | NodeTerm]) -> float | None:
    """The sum of squared residuals that the terms are shares of."""
    worst = max(terms, key=lambda term: term.share, default=None)
    return short(worst.residual / worst.share) if worst is not None and worst.share > 0 else None


def _of_nodes(score: Score, name: str) -> dict[str, float]:
    """A number of the node terms that a calibration gives: z, p or r2."""
    values = {term.node: finite(getattr(term, name)) for term in score.nodes}
    return {node: value for node, value in values.items() if value is not None}


def _judged(score: Score, nodes: Sequence[str]) -> dict[str, Any]:
    """What a record says that was compared with what is usual; nothing of any other."""
    sentence = verdict(score)
    if sentence is None:
        return {}
    return {
        "verdict": sentence,
        "suspects": score.suspects,
        "nodeP": _by_name(_of_nodes(score, "p"), nodes),
        "nodeR2": _by_name(_of_nodes(score, "r2"), nodes),
        "nodeReason": {term.node: term.reason for term in score.nodes if term.reason} or None,
    }


def _percentiles(score: Score) -> list[float | None] | None:
    """Percentiles of the record's numbers among the reference prompts of its calibration."""
    entry = score.diagnostics.get("calibration")
    given = entry.get("percentiles") if isinstance(entry, Mapping) else None
    values = [finite(given.get(name)) if isinstance(given, Mapping) else None for name in NUMBERS]
    values[0] = score.percentile if values[0] is None else values[0]
    return shorts(values, 3) if any(value is not None for value in values) else None


def _predictions(score: Score) -> list[list[Any]]:
    """The likeliest next tokens with their probabilities."""
    listed = [(token_of(entry), finite(entry.get("probability"))) for entry in score.predictions]
    return [[token, short(probability, 3)] for token, probability in listed if probability is not None]


def _errors(score: Score) -> list[float | None] | None:
    errors = [finite(score.error_of(name)) for name in NUMBERS]
    return shorts(errors, 3) if any(value is not None for value in errors) else None


def _diagnostics(score: Score) -> dict[str, float]:
    values = {name: score.diagnostics.get(name) for name in _SHOWN_DIAGNOSTICS}
    return {name: short(v) for name, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def _by_name(values: Mapping[str, float], names: Sequence[str]) -> Packed | None:
    return halves(values.get(name) for name in names) if any(name in values for name in names) else None


def _curve(score: Score, grids: _Shared) -> dict[str, Any] | None:
    if not score.curve:
        return None
    grid = _number(grids, shorts(score.curve["alpha"], 5))
    zeros = shorts(score.curve.get("zeros", []), 4)
    return {"grid": grid, "dei": halves(score.curve["dei"])} | ({"zeros": zeros} if zeros else {})
