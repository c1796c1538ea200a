"""Item 3: prompts unlike the reference, and what a reference needs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrated_sets import put_before, rephrased, translated
from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.scoring.calibration.sheaf.breadth import Breadth
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.measure import run_trial, summarise
from eics.studies.detection.summary import Verdicts, false_alarms
from proof.common import SEED, TEST, Line, loaded, observed, progress, read_known

JUDGES = ("calibrated", "no-leverage", "activations", "layers")
NARROW = (1, 2, 4, 8, 16, 31)
"""Numbers of relations from which a reference is drawn."""

NARROW_SIZES = (200, 400)
DAMAGED = 120
"""Prompts with a sentence before them that are damaged."""


def unlike(known: Path) -> dict[str, Any]:
    """Calibrated on single sentences, scored on other forms."""
    model, circuit = loaded("smollm2", "facts")
    rows = read_known(known)
    prompts = observed(model, circuit, rows, "known")
    reference, test = prompts.split(TEST, SEED)
    apart = set(test.groups)
    held_out = [row for row in rows if row["group"] in apart]
    fitted = Fitted.of(model, circuit, reference, SEED, JUDGES)
    forms = {
        "sentence": put_before(held_out, "sentence"),
        "rephrased": rephrased(held_out),
        "translated": translated(held_out),
        "context": put_before(held_out, "context"),
    }
    seen = {name: observed(model, circuit, lines, name) for name, lines in forms.items()}
    result: dict[str, Any] = {"forms": {"same": _alarms(fitted, test)}}
    result["forms"] |= {name: _alarms(fitted, of_form) for name, of_form in seen.items()}
    result["forms"]["relation"] = _relations(model, circuit, rows, prompts)
    result["lengths"] = {name: _lengths(of_form) for name, of_form in {"same": test, **seen}.items()}
    some = seen["sentence"].some(DAMAGED, SEED)
    with progress("damaged", 12 * len(some)) as tick:
        trial = run_trial(model, circuit, fitted, some, {"write": 8, "read": 4}, seed=SEED, tick=tick)
    result["damaged"] = summarise(trial, JUDGES, ("write", "read"))
    result["breadth"] = _breadth(model, circuit, rows, prompts, seen["sentence"])
    return result


def _alarms(fitted: Fitted, prompts: Prompts) -> dict[str, Any]:
    """Alarms on undamaged prompts, by way: of the largest z, and of the mean."""
    result = {}
    for way, reference in fitted.references.items():
        verdicts = Verdicts.of(fitted.judge(prompts.runs, way))
        count = len(reference)
        result[way] = {
            "prompts": len(prompts),
            "largest": false_alarms(verdicts.p_value, count),
            "mean": false_alarms(verdicts.p_value_mean, count),
        }
    return result


def _relations(model: Model, circuit: Circuit, rows: Sequence[Line], prompts: Prompts) -> dict[str, Any]:
    """Five times, a fifth of the relations is kept out of the reference: alarms on their prompts, averaged."""
    relations = sorted({row["relation"] for row in rows})
    order = np.random.default_rng([SEED, 5]).permutation(len(relations))
    parts = []
    for fold in range(5):
        out = {relations[index] for index in order[fold::5]}
        inside = prompts.pick([place for place, row in enumerate(rows) if row["relation"] not in out])
        others = prompts.pick([place for place, row in enumerate(rows) if row["relation"] in out])
        parts.append(_alarms(Fitted.of(model, circuit, inside, SEED, JUDGES), others))
    return {
        way: {
            "prompts": sum(part[way]["prompts"] for part in parts),
            **{
                statistic: {
                    level: {"rate": _weighted(parts, way, statistic, level)} for level in parts[0][way][statistic]
                }
                for statistic in ("largest", "mean")
            },
        }
        for way in JUDGES
    }


def _weighted(parts: Sequence[Any], way: str, statistic: str, level: str) -> float:
    weights = [part[way]["prompts"] for part in parts]
    return float(np.average([part[way][statistic][level]["rate"] for part in parts], weights=weights))


def _breadth(
    model: Model, circuit: Circuit, rows: Sequence[Line], prompts: Prompts, sentence: Prompts
) -> list[dict[str, Any]]:
    """References of a size, drawn from the largest relations: alarms on prompts like them, on other relations, and with
    a sentence before."""
    apart = set(prompts.split(TEST, SEED)[1].groups)
    common = [relation for relation, _ in Counter(row["relation"] for row in rows).most_common()]
    results = []
    for size in NARROW_SIZES:
        for breadth in NARROW:
            within = set(common[:breadth])
            inside = [
                place
                for place, row in enumerate(rows)
                if row["group"] not in apart and (row["relation"] in within or breadth == NARROW[-1])
            ]
            if len(inside) < size:
                continue
            reference = prompts.pick(inside).some(size, SEED)
            fitted = Fitted.of(model, circuit, reference, SEED, ("calibrated",))
            like = [p for p, row in enumerate(rows) if row["group"] in apart and row["relation"] in within]
            other = [p for p, row in enumerate(rows) if row["group"] in apart and row["relation"] not in within]
            results.append(
                {
                    "size": size,
                    "relations": breadth,
                    "endings": Breadth.of(reference.tokens).effective_endings,
                    "r2": float(fitted.learned.sheaf.regressions.r2.median()),
                    "like": _alarms(fitted, prompts.pick(like))["calibrated"],
                    "other": _alarms(fitted, prompts.pick(other))["calibrated"] if other else None,
                    "sentence": _alarms(fitted, sentence)["calibrated"],
                }
            )
    return results


def _lengths(prompts: Prompts) -> list[int]:
    """Shortest, median and longest prompt in tokens."""
    lengths = sorted(len(tokens) for tokens in prompts.tokens)
    return [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
