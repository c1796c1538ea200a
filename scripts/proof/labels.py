"""Item 6: correct against wrong answers, within a relation, without labels and with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.summary import TIMES, Verdicts, as_json
from eics.studies.statistics import Flags, Interval, Numbers, resampled_counts, wins
from proof.common import SEED, first_token, loaded, mean_statistic, observed, read_known

FOLDS = 5
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def labels(known: Path) -> dict[str, Any]:
    """AUROC of correct against wrong answers, overall and within relations.

    Every prompt is judged by a calibration that did not see its subject, in five folds. With labels: logistic
    regression, strength by nested cross-validation, subjects apart.
    """
    model, circuit = loaded("smollm2", "facts")
    rows = read_known(known)
    prompts = observed(model, circuit, rows, "known")
    correct = prompts.runs.predicted.numpy() == np.array([first_token(model, row["answer"]) for row in rows])
    columns = _judged(model, circuit, prompts)
    nodes = columns.pop("nodes")
    log_probability = np.log(prompts.runs.probability.double().numpy())
    entropy = _entropy(prompts)
    confidence = np.stack([log_probability, entropy], axis=1)
    supervised = {
        "confidence": confidence,
        "nodes": nodes,
        "confidence and nodes": np.concatenate([confidence, nodes], axis=1),
    }
    numbers = {"max-probability": log_probability, "entropy": -entropy, **{n: -c for n, c in columns.items()}}
    numbers |= {f"learned: {name}": _learned(x, correct, prompts.groups) for name, x in supervised.items()}
    relations = [row["relation"] for row in rows]
    samples = {name: _aurocs(values, correct, relations, prompts.groups) for name, values in numbers.items()}
    result: dict[str, Any] = {"prompts": len(rows), "correct": float(correct.mean()), "auroc": {}, "gain": {}}
    for name, (overall, within) in samples.items():
        result["auroc"][name] = {"overall": as_json(_interval(overall)), "within": as_json(_interval(within))}
    for part, place in (("overall", 0), ("within", 1)):
        difference = samples["learned: confidence and nodes"][place] - samples["learned: confidence"][place]
        result["gain"][part] = as_json(_interval(difference))
    return result


def _judged(model: Any, circuit: Any, prompts: Prompts) -> dict[str, Numbers]:
    """Each prompt's largest z, mean statistic and log D_v^2 by node, from a calibration on the other folds."""
    names = sorted(set(prompts.groups))
    order = np.random.default_rng([SEED, 6]).permutation(len(names))
    fold_of = {names[index]: place % FOLDS for place, index in enumerate(order)}
    largest, mean = np.empty(len(prompts)), np.empty(len(prompts))
    nodes: Numbers | None = None
    for fold in range(FOLDS):
        inside = [place for place, group in enumerate(prompts.groups) if fold_of[group] != fold]
        outside = [place for place, group in enumerate(prompts.groups) if fold_of[group] == fold]
        fitted = Fitted.of(model, circuit, prompts.pick(inside), SEED, ("calibrated",))
        runs = prompts.pick(outside).runs
        judgement = fitted.judge(runs)
        logs = np.log(judgement.whole.numpy() + 1e-9)
        nodes = np.empty((len(prompts), logs.shape[1])) if nodes is None else nodes
        nodes[outside] = logs
        largest[outside], mean[outside] = Verdicts.of(judgement).largest, mean_statistic(fitted, runs)
    assert nodes is not None
    return {"nodes": nodes, "calibrated, largest": largest, "calibrated, mean": mean}


def _entropy(prompts: Prompts) -> Numbers:
    """Of the next token, in nats."""
    logs = prompts.runs.log_probabilities
    parts = [-(chunk.float().exp() * chunk.float()).sum(dim=1).double().numpy() for chunk in logs.split(128)]
    entropy: Numbers = np.concatenate(parts)
    return entropy


def _learned(x: Numbers, correct: Flags, groups: Sequence[str]) -> Numbers:
    """Held-out predictions of a logistic regression, the strength chosen within each training part."""
    scores = np.empty(len(correct))
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=SEED).split(x, correct, groups):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        grid = {"logisticregression__C": STRENGTHS}
        inner = GroupKFold(FOLDS, shuffle=True, random_state=SEED)
        search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=inner)
        search.fit(x[train], correct[train], groups=np.asarray(groups)[train])
        scores[test] = search.predict_proba(x[test])[:, 1]
    return scores


def _aurocs(
    values: Numbers, correct: Flags, relations: Sequence[str], groups: Sequence[str]
) -> tuple[Numbers, Numbers]:
    """AUROC overall and over pairs within a relation, (1 + TIMES,): as it is, then with subjects drawn anew."""
    names, number = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    drawn = resampled_counts(len(names), TIMES, np.random.default_rng([SEED, 7]))[:, number]
    weights = np.concatenate([np.ones((1, len(values))), drawn])
    first, second = weights[:, correct], weights[:, ~correct]
    won = wins(values[correct][:, None], values[~correct][None, :])
    kinds = np.asarray(relations, dtype=str)
    same = (kinds[correct][:, None] == kinds[~correct][None, :]).astype(float)
    overall = ((first @ won) * second).sum(axis=1) / (first.sum(axis=1) * second.sum(axis=1))
    within = ((first @ (won * same)) * second).sum(axis=1) / ((first @ same) * second).sum(axis=1)
    return overall, within


def _interval(samples: Numbers) -> Interval:
    return Interval.of(float(samples[0]), samples[1:])
