"""What was looked at after the registered results were known, to understand them. Nothing here is evidence.

What `d_v` excuses was looked at on a split of the reference: the test prompts of `facts` are not touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.scoring.calibration.sheaf.breadth import Breadth
from eics.scoring.calibration.sheaf.learned import Distances
from eics.scoring.calibration.sheaf.reference import Reference
from eics.studies.detection.fitted import Fitted, Prompts, Way, places_of
from eics.studies.detection.measure import run_trial, summarise
from eics.studies.detection.observations import Observations
from eics.studies.detection.summary import Verdicts, false_alarms
from proof.common import SEED, TEST, Line, loaded, observed, progress, read_known

ALLOWANCES = (0, 1, 3, 10, 30, 100)
GROUPINGS = ("subject", "relation")
PARTS = 5


@dataclass(frozen=True)
class Excusing:
    """A way in which an unusual input excuses more, or less: `d_v^2 = D_v^2 / ((1 + a u_v) / (1 + a))`."""

    way: Way
    allowance: float

    def distances(self, runs: Observations) -> Distances:
        """(judged, R)."""
        found = self.way.distances(runs)
        excuse = (1 + self.allowance * found.unusual_input) / (1 + self.allowance)
        return replace(found, allowed=found.whole / excuse)


def explored(known: Path) -> dict[str, Any]:
    """Other relations by what a group is, and localisation by what is excused."""
    model, circuit = loaded("smollm2", "facts")
    rows = read_known(known)
    prompts = observed(model, circuit, rows, "known")
    reference, _ = prompts.split(TEST, SEED)
    return {
        "relations": {name: _relations(model, circuit, rows, prompts, name) for name in GROUPINGS},
        "allowance": _allowances(model, circuit, reference),
    }


def _relations(
    model: Model, circuit: Circuit, rows: Sequence[Line], prompts: Prompts, grouping: str
) -> list[dict[str, Any]]:
    """The references of `unlike` without a fifth of the relations, part by part, grouped by subject or by relation."""
    relations = sorted({row["relation"] for row in rows})
    order = np.random.default_rng([SEED, 5]).permutation(len(relations))
    grouped = Prompts(prompts.tokens, tuple(row[grouping] for row in rows), prompts.runs)
    results = []
    for part in range(PARTS):
        out = {relations[index] for index in order[part::PARTS]}
        inside = grouped.pick([place for place, row in enumerate(rows) if row["relation"] not in out])
        others = grouped.pick([place for place, row in enumerate(rows) if row["relation"] in out])
        fitted = Fitted.of(model, circuit, inside, SEED, ("calibrated",))
        verdicts, count = Verdicts.of(fitted.judge(others.runs)), len(fitted.references["calibrated"])
        results.append(
            {
                "endings": Breadth.of(inside.tokens).effective_endings,
                "calibrated": count,
                "prompts": len(others),
                "largest": false_alarms(verdicts.p_value, count),
                "mean": false_alarms(verdicts.p_value_mean, count),
            }
        )
    return results


def _allowances(model: Model, circuit: Circuit, reference: Prompts) -> dict[str, Any]:
    """Localisation in a split of the reference, by what an unusual input excuses."""
    inner, held_out = reference.split(TEST, SEED + 1)
    fitted = Fitted.of(model, circuit, inner, SEED, ("calibrated",))
    usual = inner.runs.rows(torch.tensor([not place.fits for place in places_of(inner, SEED)]))
    for allowance in ALLOWANCES:
        way = Excusing(fitted.ways["calibrated"], allowance)
        fitted.ways[f"{allowance}"] = way
        fitted.references[f"{allowance}"] = Reference.of(way.distances(usual), fitted.learned.reference.judged)
    with progress("damaged", 14 * len(held_out)) as tick:
        trial = run_trial(model, circuit, fitted, held_out, {"write": 8, "read": 6}, seed=SEED, tick=tick)
    return dict(summarise(trial, [f"{allowance}" for allowance in ALLOWANCES], ("write", "read")))
