"""Groups records by model, circuit and configuration: each group is a run of the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eics.reporting.page import sentences
from eics.reporting.page.circuits import Circuits, has_circuit
from eics.reporting.page.packing import shorts
from eics.scoring.options import PRESETS, RECORDED, changes_of
from eics.scoring.result import Score, Scores

_LABELS = {"paper": "Literal (preset paper)", "well-posed": "Well-posed"}


@dataclass
class Run:
    """The records of one configuration, whose options are in `used`."""

    used: dict[str, Any]
    model: str | None
    circuit: int
    scores: Scores = field(default_factory=Scores)
    label: str = ""

    def described(self, circuit: Mapping[str, Any]) -> dict[str, Any]:
        """The run as the page shows it."""
        scored = [score for score in self.scores if score.eics is not None]
        alphas = sorted({score.alpha for score in scored if score.alpha is not None})
        dtypes = sorted({score.dtype for score in scored if score.dtype is not None})
        size = f"{len(circuit['nodes'])} nodes, {len(circuit['edges'])} edges"
        return {
            "label": self.label,
            "circuit": self.circuit,
            "facts": [
                ["model", last_name(self.model) if self.model else "none (explicit circuit)"],
                ["circuit", f"{last_name(circuit['name'] or 'unnamed')} ({size})"],
                ["prompts", f"{len(self.scores)} ({len(scored)} scored)"],
                *([name, str(self.used[name])] for name in RECORDED if self.used[name] is not None),
                ["dtype", ", ".join(dtypes) or "not recorded"],
            ],
            "positions": self.used["positions"],
            "alpha": shorts(alphas),
            "alphaHow": sentences.alpha_sentence(scored),
            "exact": sentences.exactness(scored),
            "warnings": sentences.warnings(self.scores),
            "byNode": any(score.nodes for score in scored),
        }


def find_runs(scores: Sequence[Score], circuits: Circuits) -> list[Run]:
    """Groups records by model, circuit and options; an incomplete record joins the run that fits it best."""
    runs: dict[Any, Run] = {}
    incomplete = []
    for score in scores:
        used = {name: getattr(score, name) for name in RECORDED}
        if not has_circuit(score) or all(value is None for value in used.values()):
            incomplete.append((score, used))
            continue
        # Not every command records the read-out of a failed prompt.
        key = (score.model, circuits.number(score), *(used[name] for name in RECORDED if name != "readout"))
        run = runs.setdefault(key, Run(used, score.model, circuits.number(score)))
        run.used["readout"] = run.used["readout"] or used["readout"]
        run.scores.append(score)
    for score, used in incomplete:
        best = max(runs.values(), key=lambda run: sum(run.used[n] == used[n] for n in RECORDED), default=None)
        if best is None or (score.edges and best.circuit != circuits.number(score)):
            key = (None, circuits.number(score))
            best = runs.setdefault(key, Run(used, score.model, circuits.number(score)))
        best.scores.append(score)
    return _named(list(runs.values()), circuits)


def _named(runs: list[Run], circuits: Circuits) -> list[Run]:
    """Labels each run by its preset or its differences from the paper's, then by whatever tells equal labels apart."""
    for run in runs:
        recorded = any(value is not None for value in run.used.values())
        preset = next((name for name in PRESETS if recorded and not changes_of(name, run.used)), None)
        run.label = _LABELS[preset] if preset else ", ".join(changes_of("paper", run.used)) or "Configuration"
    for detail in (_model, _circuit(circuits), lambda run: run.used["mode"], lambda run: f"seed {run.used['seed']}"):
        for label in {run.label for run in runs}:
            alike = [run for run in runs if run.label == label]
            if len({detail(run) for run in alike}) > 1:
                for run in alike:
                    run.label += f", {detail(run)}"
    return runs


def _model(run: Run) -> str:
    return last_name(run.model) if run.model else "no model"


def _circuit(circuits: Circuits) -> Callable[[Run], str]:
    """Names a run's circuit; circuits of the same name get a number."""
    names = [last_name(seen.name or "unnamed circuit") for seen in circuits.seen]
    return lambda run: names[run.circuit] + (f" {run.circuit + 1}" if names.count(names[run.circuit]) > 1 else "")


def last_name(path: str) -> str:
    """A file's name without its folders, which a shared report should not reveal."""
    return path.rstrip("/").rsplit("/", 1)[-1]
