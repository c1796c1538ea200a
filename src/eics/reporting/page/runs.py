"""Groups records by model, circuit and configuration: each group is a run of the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eics.reporting.page import sentences
from eics.reporting.page.circuits import Circuits, has_circuit
from eics.reporting.page.packing import shorts
from eics.scoring.options import PRESETS, RECORDED, changes_of
from eics.scoring.result import RECORD_VERSION, Score, Scores

_LABELS = {"paper": "Literal (preset paper)", "well-posed": "Well-posed", "calibrated": "Calibrated"}
_FINGERPRINT = 8  # letters of a fingerprint that are shown


@dataclass(frozen=True)
class Origin:
    """Where a record comes from: its file, if the page is built from several, and its version."""

    file: str | None = None
    version: Any = RECORD_VERSION


@dataclass
class Run:
    """The records of one configuration. `settings` holds everything that decides a number, options included."""

    settings: dict[str, Any]
    circuit: int
    scores: Scores = field(default_factory=Scores)
    label: str = ""

    @property
    def used(self) -> dict[str, Any]:
        """The options that every record repeats."""
        return {name: self.settings[name] for name in RECORDED}

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """Whether a record with these settings may belong here: what it does not say fits everything."""
        return all(value is None or self.settings[name] in (None, value) for name, value in settings.items())

    def described(self, circuit: Mapping[str, Any]) -> dict[str, Any]:
        """The run as the page shows it."""
        scored = [score for score in self.scores if not score.failed]
        alphas = sorted({score.alpha for score in scored if score.alpha is not None})
        edges = (
            f"{len(circuit['edges'])} edges" if circuit["edges"] or not circuit["nodes"] else "edges not in the records"
        )
        size = f"{len(circuit['nodes'])} nodes, {edges}"
        optional = ("fingerprint", "file", "interventions")
        return {
            "label": self.label,
            "circuit": self.circuit,
            "facts": [
                ["model", shown("model", self.settings["model"])],
                ["circuit", f"{last_name(circuit['name'] or 'unnamed')} ({size})"],
                ["prompts", f"{len(self.scores)} ({len(scored)} scored)"],
                *([["compared with", count]] if (count := sentences.reference(scored)) else []),
                *([name, str(self.used[name])] for name in RECORDED if self.used[name] is not None),
                ["dtype", self.settings["dtype"] or "not recorded"],
                *([name, shown(name, self.settings[name])] for name in optional if self.settings[name]),
            ],
            "positions": self.used["positions"],
            "alpha": shorts(alphas),
            "alphaHow": sentences.alpha_sentence(scored),
            "exact": sentences.exactness(scored),
            "warnings": sentences.warnings(self.scores),
            "byNode": any(score.nodes for score in scored),
            "judged": bool(sentences.judged(scored)),
        }


def settings_of(score: Score, circuit: int | None, origin: Origin) -> dict[str, Any]:
    """Everything that decides a record's numbers, and where it comes from."""
    return {
        "file": origin.file,
        "model": score.model,
        "fingerprint": score.fingerprint,
        "circuit": circuit,
        "alpha": score.alpha,
        **{name: getattr(score, name) for name in RECORDED},
        "dtype": score.dtype,
        "interventions": _interventions(score),
        "record version": origin.version,
    }


def _interventions(score: Score) -> str | None:
    """The interventions in one line, without what differs from prompt to prompt."""
    if score.failed and not score.interventions:
        return None
    names = ("kind", "node", "strength", "at")
    listed = [item for item in score.interventions if isinstance(item, Mapping)]
    return "; ".join(" ".join(str(item[name]) for name in names if item.get(name) is not None) for item in listed)


def shown(name: str, value: Any) -> str:
    """A setting in words."""
    if name == "model":
        return last_name(value) if value else "none (explicit circuit)"
    if value is None or value == "":
        return "none" if name == "interventions" else "not recorded"
    if name == "fingerprint":
        return str(value)[:_FINGERPRINT]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def find_runs(scores: Sequence[Score], circuits: Circuits, origins: Sequence[Origin] | None = None) -> list[Run]:
    """Groups records by their settings; an incomplete record joins the run that fits it best."""
    origins = origins or [Origin()] * len(scores)
    given = [
        settings_of(score, circuits.number(score) if has_circuit(score) else None, origin)
        for score, origin in zip(scores, origins, strict=True)
    ]
    runs: dict[Any, Run] = {}
    homes: dict[int, Run] = {}
    # A failed prompt does not say everything: it looks for its run when all scored ones have theirs.
    for number in sorted(range(len(scores)), key=lambda number: scores[number].failed):
        homes[number] = _home(scores[number], given[number], runs, circuits)
    for number, score in enumerate(scores):
        homes[number].scores.append(score)
    first = {id(run): number for number, run in reversed(homes.items())}
    return _named(sorted(runs.values(), key=lambda run: first[id(run)]), circuits)


def _home(score: Score, settings: dict[str, Any], runs: dict[Any, Run], circuits: Circuits) -> Run:
    """The run that a record belongs to, a new one if there is none yet."""
    incomplete = not has_circuit(score) or all(settings[name] is None for name in RECORDED)
    if incomplete:
        best = max(runs.values(), key=lambda run: sum(run.settings[n] == settings[n] for n in settings), default=None)
        if best is not None and (not score.edges or best.circuit == circuits.number(score)):
            return best
    elif score.failed and (fitting := next((run for run in runs.values() if run.fits(settings)), None)):
        for name, value in settings.items():
            fitting.settings[name] = value if fitting.settings[name] is None else fitting.settings[name]
        return fitting
    key = (None, circuits.number(score)) if incomplete else tuple(settings.values())
    return runs.setdefault(key, Run(dict(settings), circuits.number(score)))


def differences(runs: Sequence[Run], circuits: Circuits) -> list[dict[str, Any]]:
    """The settings in which the runs of a page differ, with each run's value in words."""
    name_circuit = _circuit(circuits)
    different = []
    for name in runs[0].settings if len(runs) > 1 else ():
        if len({repr(run.settings[name]) for run in runs}) > 1:
            values = [name_circuit(run) if name == "circuit" else shown(name, run.settings[name]) for run in runs]
            different.append({"name": name, "values": values})
    return different


def _named(runs: list[Run], circuits: Circuits) -> list[Run]:
    """Labels each run by its preset or its differences from the paper's, then by whatever tells equal labels apart."""
    for run in runs:
        recorded = any(value is not None for value in run.used.values())
        preset = next((name for name in PRESETS if recorded and not changes_of(name, run.used)), None)
        run.label = _LABELS[preset] if preset else ", ".join(changes_of("paper", run.used)) or "Configuration"
    for name in _TELLING:
        for label in {run.label for run in runs}:
            alike = [run for run in runs if run.label == label]
            if len({repr(run.settings[name]) for run in alike}) > 1:
                for run in alike:
                    run.label += f", {_telling(name, run, circuits)}"
    return runs


_TELLING = ("model", "circuit", "mode", "seed", "alpha", "interventions", "dtype", "file", "fingerprint",
            "record version")  # fmt: skip
"""The settings that tell runs of the same preset apart, in the order in which they are tried."""


def _telling(name: str, run: Run, circuits: Circuits) -> str:
    value = run.settings[name]
    if name == "circuit":
        return _circuit(circuits)(run)
    if name == "model":
        return last_name(value) if value else "no model"
    bare = name in ("mode", "dtype", "file") and value is not None
    return shown(name, value) if bare else f"{name} {shown(name, value)}"


def _circuit(circuits: Circuits) -> Callable[[Run], str]:
    """Names a run's circuit; circuits of the same name get a number."""
    names = [last_name(seen.name or "unnamed circuit") for seen in circuits.seen]
    return lambda run: names[run.circuit] + (f" {run.circuit + 1}" if names.count(names[run.circuit]) > 1 else "")


def last_name(path: str) -> str:
    """A file's name without its folders, which a shared report should not reveal."""
    return path.rstrip("/").rsplit("/", 1)[-1]
