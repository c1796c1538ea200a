"""What the numbers say, in plain words by fixed rules.

Pooled over tasks, with intervals corrected for the number of scores compared, a score on a target under an ablation

- *ranks nothing* where it has one value on every prompt;
- *tracks* it where the partial correlation, given group, entropy, max-probability and another circuit's KL divergence,
  lies above 0;
- *goes with it, no more than its confounds do* where the plain correlation lies above 0 and the partial one does not;
- *goes with it, and cannot be told from its confounds* where there are too few prompts for the partial one;
- *goes against it* where the plain correlation lies below 0;
- else there is *no evidence* that it tracks it.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.tracking.analysis import POOLED, OverCircuits, OverPrompts
from eics.studies.tracking.costs import ABLATION, Cost
from eics.studies.tracking.measure import LEAST
from eics.studies.tracking.scores import SCORES

NAMES = {
    "edge": "C_sh by edge",
    "joint": "C_sh by node",
    "propagated": "propagated C_sh",
    "propagated_mean": "propagated C_sh with means",
    "eics_paper": "EICS, paper's preset",
    "eics_well_posed": "EICS, well-posed preset",
    "max_probability": "max-probability",
    "entropy": "entropy",
}
WHAT = {"kl": "the KL divergence", "faithfulness": "faithfulness"}

NOTHING, TRACKS, CONFOUNDED, UNTOLD = "nothing", "tracks", "confounded", "untold"
AGAINST, NO_EVIDENCE = "against", "no evidence"


def verdict(found: OverPrompts) -> str:
    """By the rules above."""
    if not found.raw.known:
        return NOTHING
    if found.given_other.side() > 0:
        return TRACKS
    return {1: CONFOUNDED if found.given_other.known else UNTOLD, -1: AGAINST, 0: NO_EVIDENCE}[found.raw.side()]


def sentences(prompts: Sequence[OverPrompts], circuits: Sequence[OverCircuits], costs: Sequence[Cost]) -> Iterator[str]:
    """The paragraph."""
    pooled = [f for f in prompts if f.task == POOLED and f.circuit == "discovered"]
    tasks = len({f.task for f in prompts} - {POOLED})
    yield f"Over prompts, with the circuit fixed ({tasks} task{'s' * (tasks != 1)}):"
    for score in SCORES:
        yield from _of_score(score, [f for f in pooled if f.score == score])
    yield from _of_unknown(pooled)
    yield from _of_others(pooled)
    yield from _of_circuits([f for f in circuits if f.task == POOLED and f.circuits == "perturbed"])
    yield from _of_costs(costs)


def _of_score(score: str, found: Sequence[OverPrompts]) -> Iterator[str]:
    verdicts = {(f.target, f.ablation): verdict(f) for f in found}
    if not verdicts:
        return
    if set(verdicts.values()) == {NOTHING}:
        yield f"{_title(score)} has one value on every prompt of a task and ranks nothing."
        return
    phrases = {
        TRACKS: "tracks {} beyond the confounds",
        CONFOUNDED: "goes with {}, no more than its confounds do",
        UNTOLD: "goes with {}; the prompts are too few to tell it from its confounds",
        AGAINST: "goes against {} (less coherent where the circuit is more faithful)",
        NO_EVIDENCE: "there is no evidence that it tracks {}",
        NOTHING: "is constant where {} is known",
    }
    said = []
    for kind, phrase in phrases.items():
        places = [
            f"{WHAT[target]} under {_kinds([a for t, a in verdicts if t == target and verdicts[t, a] == kind])}"
            for target in WHAT
            if kind in {v for (t, _), v in verdicts.items() if t == target}
        ]
        if places:
            said.append(phrase.format(_and(places)))
    yield f"{_title(score)}: {'; '.join(said)}."


def _of_unknown(pooled: Sequence[OverPrompts]) -> Iterator[str]:
    unknown = [a for a in ABLATIONS if not any(f.target == "faithfulness" and f.ablation == a for f in pooled)]
    if unknown:
        yield (
            f"Faithfulness under {_kinds(unknown)} is not compared: on fewer than {LEAST} prompts of each task "
            "does ablating everything cost enough to divide by."
        )


def _of_others(pooled: Sequence[OverPrompts]) -> Iterator[str]:
    """Whether what is predicted is this circuit's, or any circuit's."""
    going = [f for f in pooled if f.score in SCORES and f.target == "kl" and f.raw.side() > 0]
    as_well = [f for f in going if f.less_other.side() <= 0]
    if going and as_well:
        places = [f"{NAMES[f.score]} ({f.ablation}: {f.other.value:+.2f} against {f.raw.value:+.2f})" for f in as_well]
        yield (
            "No evidence that it is this circuit's divergence that is predicted: that of another circuit of the same "
            f"size is predicted about as well by {_and(places)}."
        )


def _of_circuits(pooled: Sequence[OverCircuits]) -> Iterator[str]:
    if not pooled:
        return
    yield f"Over circuits of one size, with the prompt fixed ({pooled[0].members} circuits, edges replaced at random):"
    for score in dict.fromkeys(f.score for f in pooled):
        here = [f for f in pooled if f.score == score]
        right = [f for f in here if f.raw.side() > 0]
        wrong = [f for f in here if f.raw.side() < 0]
        said = [f"ranks them by {_places(right)}"] if right else []
        said += [f"ranks them against {_places(wrong)}"] if wrong else []
        if len(right) + len(wrong) < len(here):
            rest = [f for f in here if f not in right and f not in wrong]
            said.append(f"no evidence that it ranks them by {_places(rest)}")
        yield f"{_title(score)}: {'; '.join(said)}."


def _of_costs(costs: Sequence[Cost]) -> Iterator[str]:
    known = {
        name: median(c.ratio.median for c in costs if c.name == name) for name in dict.fromkeys(c.name for c in costs)
    }
    if ABLATION not in known:
        return
    dearer = [name for name in SCORES if name in known and known[name] >= known[ABLATION]]
    listed = ", ".join(f"{NAMES[name]} {known[name]:.1f}" for name in SCORES if name in known)
    own = f"ablating everything off the circuit {known[ABLATION]:.1f}"
    yield f"In forward-equivalents, a pass of its own included: {own}; {listed}."
    if len(dearer) == len([name for name in SCORES if name in known]):
        yield (
            "Ablation is cheaper than every score here and is what faithfulness means: to know how faithful a circuit "
            "is on a prompt, use `eics circuit faithfulness`."
        )
    elif dearer:
        yield f"Ablation is cheaper than {_and([NAMES[name] for name in dearer])}."


def _places(found: Sequence[OverCircuits]) -> str:
    return _and([
        f"{WHAT[target]} under {_kinds([f.ablation for f in found if f.target == target])}"
        for target in WHAT
        if any(f.target == target for f in found)
    ])  # fmt: skip


def _title(score: str) -> str:
    name = NAMES[score]
    return name[0].upper() + name[1:]


def _kinds(ablations: Sequence[str]) -> str:
    return "all three ablations" if set(ablations) == set(ABLATIONS) else f"{_and(ablations)} ablation"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
