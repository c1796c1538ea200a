"""Records of one model, circuit and configuration: what the page calls a run, and what it says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eics.reporting.page import sentences
from eics.reporting.page.circuits import Circuits, is_homeless
from eics.reporting.page.packing import shorts
from eics.scoring.options import PRESETS, changes_of
from eics.scoring.result import Score, Scores

_USED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed")
_LABELS = {"paper": "Literal (preset paper)", "well-posed": "Well-posed"}


@dataclass
class Run:
    """The records of one configuration."""

    used: dict[str, Any]
    model: str | None
    circuit: int
    scores: Scores = field(default_factory=Scores)
    label: str = ""

    def described(self, circuit: Mapping[str, Any]) -> dict[str, Any]:
        """What the page says of it."""
        scored = [score for score in self.scores if score.eics is not None]
        alphas = sorted({score.alpha for score in scored if score.alpha is not None})
        dtypes = sorted({score.dtype for score in scored if score.dtype is not None})
        size = f"{len(circuit['nodes'])} nodes, {len(circuit['edges'])} edges"
        return {
            "label": self.label,
            "circuit": self.circuit,
            "facts": [
                ["model", last_name(self.model) if self.model else "none: an explicit circuit"],
                ["circuit", f"{last_name(circuit['name'] or 'not named')} ({size})"],
                ["prompts", f"{len(self.scores)}, {len(scored)} of them scored"],
                *([name, str(self.used[name])] for name in _USED if self.used[name] is not None),
                ["dtype", ", ".join(dtypes) or "not in the records"],
            ],
            "positions": self.used["positions"],
            "alpha": shorts(alphas),
            "alphaHow": sentences.alpha_sentence(scored),
            "exact": sentences.exactness(scored),
            "warnings": sentences.warnings(self.scores),
            "byNode": any(score.nodes for score in scored),
        }


def find_runs(scores: Sequence[Score], circuits: Circuits) -> list[Run]:
    """Records by model, circuit and options. One that says too little of them joins the first run that fits best."""
    runs: dict[Any, Run] = {}
    homeless = []
    for score in scores:
        used = {name: getattr(score, name) for name in _USED}
        if is_homeless(score) or all(value is None for value in used.values()):
            homeless.append((score, used))
            continue
        # The read-out of a failed prompt is known to some commands and not to others.
        key = (score.model, circuits.number(score), *(used[name] for name in _USED if name != "readout"))
        run = runs.setdefault(key, Run(used, score.model, circuits.number(score)))
        run.used["readout"] = run.used["readout"] or used["readout"]
        run.scores.append(score)
    for score, used in homeless:
        fits = max(runs.values(), key=lambda run: sum(run.used[n] == used[n] for n in _USED), default=None)
        if fits is None or (score.edges and fits.circuit != circuits.number(score)):
            key = (None, circuits.number(score))
            fits = runs.setdefault(key, Run(used, score.model, circuits.number(score)))
        fits.scores.append(score)
    return _named(list(runs.values()), circuits)


def _named(runs: list[Run], circuits: Circuits) -> list[Run]:
    """Names that tell the runs apart: a preset's, else what differs from the paper's options, and what else differs."""
    for run in runs:
        said = any(value is not None for value in run.used.values())
        preset = next((name for name in PRESETS if said and not changes_of(name, run.used)), None)
        run.label = _LABELS[preset] if preset else ", ".join(changes_of("paper", run.used)) or "Configuration"
    for more in (_model, _circuit(circuits), lambda run: run.used["mode"], lambda run: f"seed {run.used['seed']}"):
        for label in {run.label for run in runs}:
            alike = [run for run in runs if run.label == label]
            if len({more(run) for run in alike}) > 1:
                for run in alike:
                    run.label += f", {more(run)}"
    return runs


def _model(run: Run) -> str:
    return last_name(run.model) if run.model else "no model"


def _circuit(circuits: Circuits) -> Callable[[Run], str]:
    """How a run's circuit is called; two of one name get their numbers."""
    names = [last_name(seen.name or "a circuit") for seen in circuits.seen]
    return lambda run: names[run.circuit] + (f" {run.circuit + 1}" if names.count(names[run.circuit]) > 1 else "")


def last_name(path: str) -> str:
    """A file's name without its folders, which are nobody else's business."""
    return path.rstrip("/").rsplit("/", 1)[-1]
