"""Everything that the page shows as one object of JSON types, as small as can be.

Edges and nodes are lists in the order of their circuit, which is stored once. Of an edge the page needs its share and
its cosine; its residual is the share of the record's `total`. The share's root and the cosine go as half-precision
numbers in base64, about five letters for each edge of each prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eics import __version__
from eics.circuit import Edge
from eics.errors import CircuitError
from eics.options import PAPER, PRESETS
from eics.report import sentences
from eics.report.graph import draw_graph
from eics.report.packing import halves, roots, short, shorts, singles
from eics.result import EdgeTerm, Score, Scores

NUMBERS = ("eics", "c_sh", "consistency", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile")
"""The numbers of a record, in the order in which the page finds them."""

_USED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed")
_COMPARED = ("linearization", "residual", "parts", "metric", "emergence", "positions")
_SHOWN_DIAGNOSTICS = ("length", "share_position_0", "kernel_dim", "lambda2", "spectral_gap", "projection_distance")
_ROUNDING = 1e-12
_PRESETS = {"paper": "Literal (preset paper)", "well-posed": "Well-posed"}


def report_data(scores: Iterable[Score], *, notes: Sequence[str] = (), source: str | None = None) -> dict[str, Any]:
    """The page's data from results alone."""
    listed = list(scores)
    circuits = _Circuits()
    for score in listed:
        circuits.see(score)
    runs = _runs(listed, circuits)
    drawn, undrawn = circuits.drawn()
    grids: list[list[float]] = []
    records = [
        _record(score, number, drawn[run.circuit], circuits.orders[run.circuit], grids)
        for number, run in enumerate(runs)
        for score in run.scores
    ]
    models = sorted({_last(score.model) for score in listed if score.model})
    names = [*models, *sorted({_last(c["name"]) for c in drawn if c["name"]})]
    return {
        "title": " · ".join(["EICS", *names] if names else ["EICS", source or "a run"]),
        "source": source,
        "eics": __version__,
        "notes": [*notes, *undrawn, *circuits.notes],
        "numbers": list(NUMBERS),
        "circuits": drawn,
        "runs": [_run(run, drawn) for run in _named(runs)],
        "grids": grids,
        "records": records,
    }


@dataclass
class _Circuits:
    """The circuits of the records, put together from their edges: a record may lack those that carry nothing."""

    orders: list[dict[Edge, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _names: list[str | None] = field(default_factory=list)
    _attributions: list[dict[Edge, float]] = field(default_factory=list)
    _positions: list[dict[str, list[int]]] = field(default_factory=list)

    def number(self, score: Score) -> int:
        """Which circuit a record is about: that of its hash, else (older records) of its very edges."""
        key: Any = score.circuit["sha256"] if score.circuit else frozenset(str(edge) for edge in score.edges)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self.orders.append({})
            self._names.append(score.circuit["name"] if score.circuit else None)
            self._attributions.append({})
            self._positions.append({})
        return self._numbers[key]

    def unknown(self, score: Score) -> bool:
        """Whether a record does not say which circuit it is about, as one that failed long ago."""
        return score.circuit is None and not score.edges

    def see(self, score: Score) -> None:
        """Takes in the edges of a record."""
        if self.unknown(score):
            return
        number = self.number(score)
        order, known = self.orders[number], self._attributions[number]
        self._positions[number] |= score.node_positions
        for term in sorted(score.edges, key=str):
            edge = Edge(term.source, term.target, term.port)
            order.setdefault(edge, len(order))
            if term.attribution is not None and known.setdefault(edge, term.attribution) != term.attribution:
                note = "Records of one circuit have different attributions: the first ones are shown."
                self.notes += [note] if note not in self.notes else []

    def drawn(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Each circuit with its places, and what could not be drawn."""
        found, notes = [], []
        for order, name, scores, kept in zip(
            self.orders, self._names, self._attributions, self._positions, strict=True
        ):
            graph: dict[str, Any] = {"width": 0, "height": 0, "box": [0, 0], "nodes": [], "edges": [], "rows": []}
            try:
                if order:
                    graph = draw_graph(order, scores, kept)
            except CircuitError as error:
                notes.append(f"A circuit cannot be drawn: {error}")
                graph["edges"] = [[str(e.source), str(e.target), e.port, scores.get(e), None] for e in order]
            found.append({"name": name} | graph)
        return found, notes


@dataclass
class _Run:
    """The records of one configuration."""

    used: dict[str, Any]
    model: str | None
    circuit: int
    scores: Scores
    label: str = ""


def _runs(scores: Sequence[Score], circuits: _Circuits) -> list[_Run]:
    """Records by model, circuit and options. One that says too little of them joins the first run that fits best."""
    runs: dict[Any, _Run] = {}
    homeless = []
    for score in scores:
        used = {name: getattr(score, name) for name in _USED}
        if circuits.unknown(score) or all(value is None for value in used.values()):
            homeless.append((score, used))
            continue
        # The read-out of a failed prompt is known to some commands and not to others.
        key = (score.model, circuits.number(score), *(used[name] for name in _USED if name != "readout"))
        run = runs.setdefault(key, _Run(used, score.model, circuits.number(score), Scores()))
        run.used["readout"] = run.used["readout"] or used["readout"]
        run.scores.append(score)
    for score, used in homeless:
        fits = max(runs.values(), key=lambda run: sum(run.used[n] == used[n] for n in _USED), default=None)
        if fits is None or (score.edges and fits.circuit != circuits.number(score)):
            key = (None, circuits.number(score))
            fits = runs.setdefault(key, _Run(used, score.model, circuits.number(score), Scores()))
        fits.scores.append(score)
    return list(runs.values())


def _named(runs: list[_Run]) -> list[_Run]:
    """Names that tell the runs apart: a preset's, else what differs from the paper's options."""
    for run in runs:
        preset = next((n for n, o in PRESETS.items() if all(run.used[k] == o[k] for k in _COMPARED)), None)
        differs = [str(run.used[name]) for name in _COMPARED if run.used[name] not in (None, PAPER[name])]
        run.label = _PRESETS.get(preset or "", preset or "") or ", ".join(differs) or "Configuration"
    for name in ("mode", "model", "circuit", "seed"):
        labels = [run.label for run in runs]
        for run in runs:
            if labels.count(run.label) > 1:
                run.label += f", {name} {run.used.get(name, getattr(run, name, None))}"
    return runs


def _run(run: _Run, drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scored = [score for score in run.scores if score.eics is not None]
    alphas = sorted({score.alpha for score in scored if score.alpha is not None})
    dtypes = sorted({score.dtype for score in scored if score.dtype is not None})
    circuit = drawn[run.circuit]
    size = f"{len(circuit['nodes'])} nodes, {len(circuit['edges'])} edges"
    return {
        "label": run.label,
        "circuit": run.circuit,
        "facts": [
            ["model", _last(run.model) if run.model else "none: an explicit circuit"],
            ["circuit", f"{_last(circuit['name'] or 'not named')} ({size})"],
            ["prompts", f"{len(run.scores)}, {len(scored)} of them scored"],
            *([name, str(run.used[name])] for name in _USED if run.used[name] is not None),
            ["dtype", ", ".join(dtypes) or "not in the records"],
        ],
        "options": {name: run.used[name] for name in _USED},
        "alpha": shorts(alphas),
        "alphaHow": sentences.alpha_sentence(scored),
        "exact": sentences.exactness(scored),
        "warnings": sentences.warnings(run.scores),
        "byNode": any(score.nodes for score in scored),
    }


def _record(
    score: Score, run: int, circuit: Mapping[str, Any], order: Mapping[Edge, int], grids: list[list[float]]
) -> dict[str, Any]:
    terms = {Edge(term.source, term.target, term.port): term for term in score.edges}
    edges = [terms.get(edge) for edge in order]
    nodes = [node[0] for node in circuit["nodes"]]
    by_node = {term.node: term for term in score.nodes}
    names = [str(edge) for edge in order]
    # Shares of rounding errors would look like a finding.
    consistent = score.c_sh is not None and score.c_sh < _ROUNDING
    found: dict[str, Any] = {
        "id": score.id,
        "run": run,
        "status": score.status,
        "reason": score.reason,
        "prompt": score.prompt,
        "tokens": score.tokens,
        "answer": score.answer,
        "label": None if score.label is None else str(score.label),
        "alpha": short(score.alpha),
        "values": shorts([getattr(score, name) for name in NUMBERS]),
        "errors": {name: short(value) for name, value in score.stderr.items() if name in NUMBERS},
        "more": {
            n: v for n in _SHOWN_DIAGNOSTICS if isinstance(v := _short_number(score.diagnostics.get(n)), int | float)
        },
        "consistent": consistent,
        "total": short(_total(score)),
        "share": roots(None if e is None else 0.0 if consistent else e.share for e in edges),
        "cosine": _cosines(edges),
        "norm": _packed(score.norms, nodes),
        "ei": _packed(score.ei_parts, nodes),
        "branch": _packed(score.ei_parts, names),
        "nodeShare": _packed({n: 0.0 if consistent else t.share for n, t in by_node.items()}, nodes),
        "nodeResidual": _packed({name: term.residual for name, term in by_node.items()}, nodes),
        "curve": _curve(score, grids),
    }
    return {name: value for name, value in found.items() if value is not None and value is not False and value != {}}


def _cosines(edges: Sequence[EdgeTerm | None]) -> str | None:
    known = [None if edge is None else edge.cosine for edge in edges]
    return None if all(cosine is None for cosine in known) else halves(known)


def _total(score: Score) -> float:
    """The sum of squared residuals, of which each edge has its share."""
    worst = max(score.edges, key=lambda edge: edge.share, default=None)
    return worst.residual / worst.share if worst is not None and worst.share > 0 else 0.0


def _packed(values: Mapping[str, float], names: Sequence[str]) -> str | None:
    return singles(values.get(name) for name in names) if any(name in values for name in names) else None


def _curve(score: Score, grids: list[list[float]]) -> dict[str, Any] | None:
    if not score.curve:
        return None
    grid = [float(f"{alpha:.5g}") for alpha in score.curve["alpha"]]
    if grid not in grids:
        grids.append(grid)
    zeros = [float(f"{alpha:.4g}") for alpha in score.curve.get("zeros", [])]
    return {"grid": grids.index(grid), "dei": singles(score.curve["dei"]), "zeros": zeros}


def _last(name: str) -> str:
    """A file's name without its folders, which are nobody else's business."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def _short_number(value: Any) -> Any:
    return short(value) if isinstance(value, float) else value
