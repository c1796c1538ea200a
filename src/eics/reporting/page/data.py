"""Everything that the page shows as one object of JSON types, as small as can be.

What records have in common is stored once: circuits with their places, prompts with their tokens (with two presets
each has two records), the grid of alphas. Edges and nodes are lists in the order of their circuit. Of an edge the page
needs its share and its cosine, three letters; its residual is the share of the record's `total`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eics import __version__
from eics.circuits.graph import Edge
from eics.reporting.page.circuits import Circuits
from eics.reporting.page.packing import Packed, halves, pairs, short, shorts
from eics.reporting.page.runs import find_runs, last_name
from eics.scoring.result import EdgeTerm, NodeTerm, Score

NUMBERS = ("eics", "c_sh", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile")
"""The numbers of a record, in the order in which the page finds them."""

_SHOWN_DIAGNOSTICS = ("length", "share_position_0", "kernel_dim", "lambda2", "spectral_gap", "projection_distance")


def report_data(scores: Iterable[Score], *, notes: Sequence[str] = (), source: str | None = None) -> dict[str, Any]:
    """The page's data from results alone."""
    listed = list(scores)
    circuits = Circuits()
    for score in listed:
        circuits.see(score)
    runs = find_runs(listed, circuits)
    drawn = [circuit.drawn() for circuit in circuits.seen]
    graphs = [graph for graph, _ in drawn]
    prompts, grids = _Shared(), _Shared()
    records = [
        {"about": prompts.place(_prompt(score)), "run": number}
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
        "notes": [*notes, *(note for _, said in drawn for note in said)],
        "numbers": list(NUMBERS),
        "circuits": graphs,
        "runs": [run.described(graphs[run.circuit]) for run in runs],
        "grids": grids.things,
        "prompts": prompts.things,
        "records": records,
    }


class _Shared:
    """Things that many records have in common, each stored once."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, thing: Any) -> int:
        """Where a thing is in the list."""
        key = repr(thing)
        if key not in self._places:
            self._places[key] = len(self.things)
            self.things.append(thing)
        return self._places[key]


def _prompt(score: Score) -> dict[str, Any]:
    """What a prompt is, whatever was made of it. Its text is left out where the tokens have it."""
    written = "".join(score.tokens or ())
    return _said(
        id=score.id,
        prompt=score.prompt if score.prompt != written else None,
        tokens=score.tokens,
        answer=score.answer,
        label=None if score.label is None else str(score.label),
    )


def _record(score: Score, order: Mapping[Edge, int], circuit: Mapping[str, Any], grids: _Shared) -> dict[str, Any]:
    nodes = [node[0] for node in circuit["nodes"]]
    consistent = score.is_consistent
    propagated = score.residual == "propagated"  # its shares are not of the squared residuals
    return _said(
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
        curve=_curve(score, grids),
    )


def _said(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _edges(score: Score, order: Mapping[Edge, int], *, blame: bool) -> dict[str, Any]:
    """Shares of the largest one (`most`) with cosines, and the sum of squared residuals that shares are of."""
    shares: list[float | None] = [None] * len(order)
    cosines: list[float | None] = [None] * len(order)
    for term in score.edges:
        place = order[Edge(term.source, term.target, term.port)]
        shares[place], cosines[place] = term.share if blame else 0.0, term.cosine
    most = max((share for share in shares if share is not None), default=0.0)
    angles = any(cosine is not None for cosine in cosines)
    return _said(total=_total(score.edges), most=short(most), angles=angles or None, edges=pairs(shares, cosines, most))


def _total(terms: Sequence[EdgeTerm | NodeTerm]) -> float | None:
    """The sum of squared residuals, of which each term has its share."""
    worst = max(terms, key=lambda term: term.share, default=None)
    return short(worst.residual / worst.share) if worst is not None and worst.share > 0 else None


def _errors(score: Score) -> list[float | None] | None:
    known = [value if math.isfinite(value := score.stderr.get(name, math.nan)) else None for name in NUMBERS]
    return shorts(known, 3) if any(value is not None for value in known) else None


def _diagnostics(score: Score) -> dict[str, float]:
    found = {name: score.diagnostics.get(name) for name in _SHOWN_DIAGNOSTICS}
    return {name: short(v) for name, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}


def _by_name(values: Mapping[str, float], names: Sequence[str]) -> Packed | None:
    return halves(values.get(name) for name in names) if any(name in values for name in names) else None


def _curve(score: Score, grids: _Shared) -> dict[str, Any] | None:
    if not score.curve:
        return None
    grid = grids.place([float(f"{alpha:.5g}") for alpha in score.curve["alpha"]])
    zeros = [float(f"{alpha:.4g}") for alpha in score.curve.get("zeros", [])]
    return {"grid": grid, "dei": halves(score.curve["dei"])} | ({"zeros": zeros} if zeros else {})
