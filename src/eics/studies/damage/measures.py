"""What is measured of one pass: scores, other residuals, baselines that need no circuit, and the rank of the place.

A row is flat: `well-posed.c_sh` is that configuration's C_sh, `max_probability` a number of the pass itself. Ranks are
of the damaged node among the circuit's nodes with parents by its share of the inconsistency, joint and propagated, and
of the best edge into or out of it among all edges; `..._change` by what changed against the undamaged run. Ties count
half, so that a share that says nothing ranks as chance does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.options import Options
from eics.scoring.result import Score
from eics.scoring.sheaf import sheaf_term
from eics.transformer.forward import ForwardState

NUMBERS = ("eics", "c_sh", "consistency", "dei", "emergence_ratio")
RESIDUALS = ("joint", "propagated")
BASELINES = ("max_probability", "entropy", "activation_norm")
RANKS = tuple(f"rank_{by}{suffix}" for by in (*RESIDUALS, "edge") for suffix in ("", "_change"))


@dataclass(frozen=True)
class Measure:
    """A column, what to call it, and which way damage should move it: +1 up, -1 down."""

    column: str
    label: str
    sign: int


def measures(configurations: Sequence[str]) -> tuple[Measure, ...]:
    """Everything that a curve is drawn of, for these configurations."""
    found = []
    for name in configurations:
        found += [
            Measure(f"{name}.eics", f"EICS, {name}", -1),
            Measure(f"{name}.c_sh", f"C_sh, {name}", 1),
            Measure(f"{name}.consistency", f"consistency, {name}", -1),
            Measure(f"{name}.joint", f"joint C_sh, {name}", 1),
            Measure(f"{name}.propagated", f"propagated C_sh, {name}", 1),
            Measure(f"{name}.emergence_ratio", f"r, {name}", -1),
            Measure(f"{name}.dei", f"signed dEI, {name}", -1),
        ]
    baselines = (("max_probability", -1), ("entropy", 1), ("activation_norm", 1), ("kl", 1))
    return (*found, *(Measure(column, column.replace("_", " "), sign) for column, sign in baselines))


def more_residuals(linearized: LinearizedCircuit, options: Options) -> list[dict[str, Any]]:
    """For each prompt, C_sh and its shares in the two residuals that go by node, where the score itself is not one."""
    restricted = linearized.restrict(options.positions)
    found: list[dict[str, Any]] = [{} for _ in range(restricted.batch)]
    for residual in RESIDUALS:
        if residual == options.residual:
            continue
        term = sheaf_term(restricted, residual=residual, metric=options.metric)
        for row, diagnostics in enumerate(found):
            shares = zip(map(str, term.names), term.share[row].nan_to_num(0.0, 0.0, 0.0).tolist(), strict=True)
            diagnostics[residual] = {"c_sh": _finite(float(term.c_sh[row])), "shares": dict(shares)}
    return found


def baselines(state: ForwardState, references: Sequence[Tensor | None]) -> list[dict[str, float | None]]:
    """Of each pass at its answer position: largest probability, entropy, norm of the final stream; and the KL
    divergence of the undamaged model's answer from this one's, where its logits are given."""
    assert state.logits is not None
    assert state.final_read is not None
    logs = state.logits.double().log_softmax(dim=1)
    rows = torch.arange(len(logs), device=logs.device)
    norms = torch.linalg.vector_norm(state.final_read[rows, state.answer].double(), dim=1)
    found = []
    for row, reference in enumerate(references):
        log, probability = logs[row], logs[row].exp()
        numbers = {
            "max_probability": float(probability.max()),
            "entropy": float(-(probability * log).sum()),
            "activation_norm": float(norms[row]),
        }
        if reference is not None:
            known = reference.double().log_softmax(dim=0)
            numbers["kl"] = float((known.exp() * (known - log)).sum())
        found.append({name: _finite(number) for name, number in numbers.items()})
    return found


def numbers_of(scores: Mapping[str, Score]) -> dict[str, float | None]:
    """The flat numbers of a pass, from its results by configuration."""
    found: dict[str, float | None] = {}
    for name, score in scores.items():
        found |= {f"{name}.{number}": getattr(score, number) for number in NUMBERS}
        found |= {f"{name}.{residual}": _by_node(score, residual)[0] for residual in RESIDUALS}
    pass_numbers = next(iter(scores.values())).diagnostics.get("pass", {})
    return found | {name: pass_numbers.get(name) for name in (*BASELINES, "kl")}


def ranks_of(node: str, scores: Mapping[str, Score], calm: Mapping[str, Score]) -> dict[str, float | None]:
    """Where the damaged node and its edges rank, with how many there are; None where it cannot be ranked."""
    found: dict[str, float | None] = {}
    for name, score in scores.items():
        for residual in RESIDUALS:
            now, before = (_contributions(one, residual) for one in (score, calm[name]))
            found[f"{name}.rank_{residual}"] = _rank(now, [node])
            found[f"{name}.rank_{residual}_change"] = _rank(_less(now, before), [node])
            found[f"{name}.nodes"] = len(now)
        now, before = ({str(edge): edge.residual for edge in one.edges} for one in (score, calm[name]))
        touching = [str(edge) for edge in score.edges if node in (edge.source, edge.target)]
        found[f"{name}.rank_edge"] = _rank(now, touching)
        found[f"{name}.rank_edge_change"] = _rank(_less(now, before), touching)
        found |= {f"{name}.edges": len(now), f"{name}.touching": len(touching)}
    return found


def _by_node(score: Score, residual: str) -> tuple[float | None, dict[str, float]]:
    """C_sh and shares in a residual that goes by node: the score's own, or one beside it."""
    if score.residual == residual:
        return score.c_sh, {term.node: term.share for term in score.nodes}
    known = score.diagnostics.get(residual) or {"c_sh": None, "shares": {}}
    return known["c_sh"], known["shares"]


def _contributions(score: Score, residual: str) -> dict[str, float]:
    """share_v C_sh^2: what each node puts in, on a scale that is the same before and after."""
    c_sh, shares = _by_node(score, residual)
    return {node: share * (c_sh or 0.0) ** 2 for node, share in shares.items()}


def _less(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


def _rank(values: Mapping[str, float], ours: Sequence[str]) -> float | None:
    """Rank of the best of ours, 1 the largest; a tie with others counts half of them."""
    known = [values[name] for name in ours if name in values]
    if not known:
        return None
    best, mine = max(known), set(ours)
    others = [value for name, value in values.items() if name not in mine]
    return 1.0 + sum(value > best for value in others) + 0.5 * sum(value == best for value in others)


def chance(total: int, ours: int) -> tuple[float, float]:
    """Mean reciprocal rank and top-1 rate of the best of `ours` among `total` in random order.

    >>> [round(number, 4) for number in chance(4, 1)]
    [0.5208, 0.25]
    """
    beyond, reciprocal = 1.0, 0.0  # beyond: probability that the best of ours comes after rank r
    for rank in range(1, total - ours + 2):
        here = beyond * ours / (total - rank + 1)
        reciprocal += here / rank
        beyond -= here
    return reciprocal, ours / total


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
