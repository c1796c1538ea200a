"""Item 4: the right answer for another reason: recalled, copied from the context, or swapped there."""

from pathlib import Path
from typing import Any

import numpy as np

from calibrated_sets import reasons
from eics.studies.detection.fitted import Fitted
from eics.studies.detection.summary import Verdicts, as_json, paired_auroc
from proof.common import SEED, first_token, loaded, mean_statistic, observed, rows_of

JUDGES = ("calibrated", "no-leverage", "activations", "layers")
REFERENCES = {"plain alone": ("plain",), "plain and recall": ("plain", "recall")}
HELD_OUT = 0.4
"""The share of subjects whose prompts are judged."""


def other_reasons(_: Path) -> dict[str, Any]:
    """Copied and swapped answers against recalled ones: AUROC of each way's mean and largest number.

    Only questions count to which the model's likeliest token begins the answer, in both forms; in a swap, the answer
    that the context gave.
    """
    model, circuit = loaded("smollm2", "facts")
    rows = reasons(SEED)
    prompts = observed(model, circuit, rows, "reasons")
    apart = set(prompts.split(HELD_OUT, SEED)[1].groups)
    expected = [first_token(model, row["said"] if row["form"] == "swap" else row["answer"]) for row in rows]
    right = prompts.runs.predicted.numpy() == np.array(expected)
    question = [row["id"].rsplit("/", 1)[0] for row in rows]
    result: dict[str, Any] = {"right": {}, "auroc": {}}
    for form in ("plain", "recall", "copy", "swap"):
        of_form = [place for place, row in enumerate(rows) if row["form"] == form and row["group"] in apart]
        result["right"][form] = {"prompts": len(of_form), "rate": float(right[of_form].mean())}
    for name, forms in REFERENCES.items():
        inside = [p for p, row in enumerate(rows) if row["form"] in forms and row["group"] not in apart]
        fitted = Fitted.of(model, circuit, prompts.pick(inside), SEED, JUDGES)
        result["auroc"][name] = {"reference": len(inside)}
        for form in ("copy", "swap"):
            answered = {q for q, row, ok in zip(question, rows, right, strict=True) if row["form"] == form and ok}
            recalled = {q for q, row, ok in zip(question, rows, right, strict=True) if row["form"] == "recall" and ok}
            both = answered & recalled
            chosen = [row["group"] in apart and q in both for q, row in zip(question, rows, strict=True)]
            sides = {
                side: np.array([flag and row["form"] == side for flag, row in zip(chosen, rows, strict=True)])
                for side in (form, "recall")
            }
            result["auroc"][name][form] = _compare(fitted, prompts, rows, sides, form)
    return result


def _compare(fitted: Fitted, prompts: Any, rows: Any, sides: dict[str, np.ndarray], form: str) -> dict[str, Any]:
    first, second = rows_of(prompts.runs, sides[form]), rows_of(prompts.runs, sides["recall"])
    groups = [[row["group"] for row, flag in zip(rows, sides[side], strict=True) if flag] for side in (form, "recall")]
    numbers = {"max-probability": (-first.probability.numpy(), -second.probability.numpy())}
    for way in JUDGES:
        numbers[f"{way}, mean"] = (mean_statistic(fitted, first, way), mean_statistic(fitted, second, way))
        numbers[f"{way}, largest"] = tuple(Verdicts.of(fitted.judge(runs, way)).largest for runs in (first, second))
    alarms = Verdicts.of(fitted.judge(second))
    return {
        "questions": len(second),
        "auroc": {name: as_json(paired_auroc(*pair, *groups)) for name, pair in numbers.items()},
        "alarms on recall": {
            "largest": float((alarms.p_value <= 0.05).mean()),
            "mean": float((alarms.p_value_mean <= 0.05).mean()),
        },
    }
