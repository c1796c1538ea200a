"""A trial: a reference set, test prompts of other groups, and the runs in which one node was damaged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.observations import Observations, divergence, observe_batch
from eics.studies.detection.plan import OFF, Damage, intervention, plan
from eics.studies.detection.summary import Resamples, Verdicts, as_json, by_node, calm, localisation
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.statistics import Indices, Interval, Numbers

_BATCH = 48  # damaged runs in one pass


@dataclass(frozen=True)
class Trial:
    """Damaged runs of test prompts.

    Attributes:
        fitted: what was learned from the reference.
        test: the test prompts, undamaged.
        damages, runs: what was done, and what it left behind.
        kl: KL(undamaged || damaged) of the next token, (R,). changed: whether the likeliest token changed.
    """

    fitted: Fitted
    test: Prompts
    damages: tuple[Damage, ...]
    runs: Observations
    kl: Numbers
    changed: Numbers

    def of_kind(self, kind: str) -> Indices:
        """Which runs have this kind of damage."""
        return np.array([row for row, damage in enumerate(self.damages) if damage.kind == kind], dtype=np.int64)

    def prompts(self, rows: Indices) -> Indices:
        """The test prompts of runs."""
        return np.array([self.damages[row].prompt for row in rows], dtype=np.int64)

    def nodes(self, rows: Indices) -> Indices:
        """Where the damaged nodes stand among those with parents."""
        places = {name: place for place, name in enumerate(self.fitted.nodes)}
        return np.array([places[self.damages[row].node] for row in rows], dtype=np.int64)


def run_trial(
    model: Model,
    circuit: Circuit,
    fitted: Fitted,
    test: Prompts,
    per_prompt: dict[str, int],
    *,
    seed: int = 0,
    off: int = 0,
    tick: Callable[[int], None] = lambda _: None,
) -> Trial:
    """Damages every test prompt in turn, one node at a time; `off` nodes outside the circuit for each prompt."""
    damages = plan(test.groups, fitted.targets, per_prompt, seed)
    damages += _outside(model, circuit, test.groups, off, seed)
    damages.sort(key=lambda damage: damage.prompt)
    parts, kl = [], []
    for prompt, same in groupby(damages, key=lambda damage: damage.prompt):
        listed = list(same)
        for start in range(0, len(listed), _BATCH):
            chunk = listed[start : start + _BATCH]
            rows = [[intervention(damage, test.tokens, fitted.mean)] for damage in chunk]
            tokens = [test.tokens[prompt]] * len(chunk)
            observed = observe_batch(model, circuit, tokens, rows, distributions=True)
            clean = test.runs.log_probabilities[prompt].expand_as(observed.log_probabilities)
            kl.append(divergence(clean, observed.log_probabilities))
            parts.append(without_distributions(observed))
            tick(len(chunk))
    runs = Observations.cat(parts)
    prompts = torch.tensor([damage.prompt for damage in damages])
    changed = (runs.predicted != test.runs.predicted[prompts]).numpy().astype(float)
    return Trial(fitted, test, tuple(damages), runs, torch.cat(kl).double().numpy(), changed)


def without_distributions(runs: Observations) -> Observations:
    """The runs without next-token distributions, which are large."""
    return Observations(
        runs.samples, runs.layers, runs.recomputed, runs.log_probabilities[:, :0], runs.predicted, runs.probability
    )


def _outside(model: Model, circuit: Circuit, groups: Sequence[str], count: int, seed: int) -> list[Damage]:
    """Write patches of nodes that are not in the circuit."""
    inside = set(circuit.order)
    nodes = [name for name in FullGraph.of(model).writers if name not in inside]
    writes = plan(groups, nodes, {"write": count}, seed + 1, kinds=("write",)) if count else []
    return [Damage(damage.prompt, damage.node, OFF, damage.donor) for damage in writes]


def summarise(trial: Trial, ways: Sequence[str], kinds: Sequence[str], *, fitted: Fitted | None = None) -> Any:
    """Localisation by kind and way, false alarms on the undamaged test prompts, and damage outside the circuit.

    Another calibration can be given to judge the same runs.
    """
    fitted = fitted or trial.fitted
    resamples = Resamples(trial.test.groups)
    result: dict[str, Any] = {"kinds": {kind: {} for kind in kinds}, "calm": {}, OFF: {}, "by_node": {}}
    for way in ways:
        clean = Verdicts.of(fitted.judge(trial.test.runs, way))
        result["calm"][way] = calm(clean, fitted.references[way])
        for kind in kinds:
            rows = trial.of_kind(kind)
            if len(rows):
                damaged = Verdicts.of(fitted.judge(trial.runs.rows(torch.from_numpy(rows)), way))
                found = localisation(damaged, clean, trial.nodes(rows), trial.prompts(rows), resamples)
                result["kinds"][kind][way] = found
                if way == "calibrated":
                    result["by_node"][kind] = by_node(damaged, trial.nodes(rows), fitted.nodes)
        if len(trial.of_kind(OFF)):
            result[OFF][way] = _outside_summary(trial, fitted, way, clean, resamples)
    result["effect"] = {kind: _effect(trial, trial.of_kind(kind)) for kind in (*kinds, OFF) if len(trial.of_kind(kind))}
    learned = fitted.learned
    return result | {
        "fitted": learned.fitted,
        "calibrated": len(learned.ids),
        "test": len(trial.test),
        "nodes": len(fitted.nodes),
        "judged": len(fitted.targets),
        "not_judged": learned.sheaf.reasons,
    }


def _outside_summary(trial: Trial, fitted: Fitted, way: str, clean: Verdicts, resamples: Resamples) -> dict[str, Any]:
    """The prompt's AUROC under damage outside the circuit, by its effect on the answer."""
    rows = trial.of_kind(OFF)
    damaged = Verdicts.of(fitted.judge(trial.runs.rows(torch.from_numpy(rows)), way))
    won = resamples.against(damaged.largest, clean.largest)
    weights = np.concatenate([np.ones((len(rows), 1)), resamples.weights[trial.prompts(rows)]], axis=1)
    changed, kl = trial.changed[rows] > 0, trial.kl[rows]
    quarters = np.quantile(kl, [0.25, 0.75])
    parts = {
        "all": np.ones(len(rows), dtype=bool),
        "answer changed": changed,
        "answer kept": ~changed,
        "largest quarter of KL": kl >= quarters[1],
        "smallest quarter of KL": kl <= quarters[0],
    }
    results = {}
    for name, part in parts.items():
        if part.any():
            with np.errstate(invalid="ignore"):
                samples = (won * weights)[part].sum(axis=0) / weights[part].sum(axis=0)
            results[name] = as_json(Interval.of(float(samples[0]), samples[1:])) | {"runs": int(part.sum())}
    return results


def _effect(trial: Trial, rows: Indices) -> dict[str, float]:
    """What the damage did to the answer."""
    return {"median_kl": float(np.median(trial.kl[rows])), "changed": float(trial.changed[rows].mean())}
