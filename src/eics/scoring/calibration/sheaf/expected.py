"""What a node was expected to write at the answer position, and which parents carried it away from that.

    expected_v = mean_v + P_v^T B_v x_v          what the reference set leads one to expect, given what the node read
    r          = P_v (a_v - expected_v)          what is left, as `learned` judges it
    g          = P_v^T S_v^-1 r                  the direction in which the write is unusual, in the learned metric

so that `g . (a_v - expected_v) = r^T S_v^-1 r`, which is k times the first part of `D_v^2`. Under `frozen` the parents'
part of `e_v = b_v + sum_u rho_{u->v} a_u` splits this number into signed shares:

    share_u     = g . rho_{u->v} (a_u - mean_u) / (r^T S_v^-1 r)
    rest        = 1 - sum_u share_u
    off_circuit = g . ((a_v - mean_v) - (e_v - mean of e_v)) / (r^T S_v^-1 r)

A parent with a share of 0.6 pushed the node 60% of the way that it went beyond what was expected; a negative share
pulled it back. The rest came from no parent. One part of it is what the circuit does not explain: what came from off
the circuit, or from an intervention. A node whose own write was exchanged has nearly everything there. The other part,
`rest - off_circuit`, is what the node would have made of average parents, less what was expected: it is negative if
what the parents brought was largely expected.

`mean_u` is what the parent writes on average over the reference set, where that is known: for nodes that read a single
position (MLPs and the read-out), and for all nodes if every position was judged (`at="all"`). The mean of a write at
the answer position says nothing about the positions that a head looks at: its parents count from zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.linearized.circuit import LinearizedCircuit, Stalk
from eics.scoring.calibration.sheaf.bases import coordinates
from eics.scoring.calibration.sheaf.learned import LearnedSheaf
from eics.scoring.calibration.sheaf.samples import sample
from eics.transformer.linearize import TransformerRun


@dataclass(frozen=True)
class Expectation:
    """The judged nodes of a batch at the answer position; float64, (judged, B, d) but for the last two, (judged, B).

    Attributes:
        written, expected: a_v and what was expected of it; a shorter stalk is padded with zeros.
        direction: g.
        unusual: r^T S_v^-1 r.
        unexplained: g . ((a_v - mean_v) - (e_v - mean of e_v)).
    """

    written: Tensor
    expected: Tensor
    direction: Tensor
    unusual: Tensor
    unexplained: Tensor


@dataclass(frozen=True)
class Shares:
    """Of `r^T S_v^-1 r` of one node, for each prompt, (B,): shares of its parents, the rest, and one part of that."""

    parents: dict[str, Tensor]
    rest: Tensor
    off_circuit: Tensor


def expectation(sheaf: LearnedSheaf, run: TransformerRun) -> Expectation:
    """What the nodes of a pass wrote at the answer position, against what was expected of them."""
    samples = sample(run, sheaf.layout, "answer")
    bases, regressions = sheaf.bases, sheaf.regressions
    at = coordinates(bases, samples)
    predicted = regressions.predicted(regressions.standardised(at))
    whitened = (at.outputs - predicted) @ regressions.whitener.mT  # L^-1 r
    own, written = bases.own_write, samples.writes.double()[bases.places]
    mean = bases.write_mean[bases.places].unsqueeze(1)
    direction = whitened @ regressions.whitener @ own
    given = samples.explained.double() - bases.explained_mean.unsqueeze(1)
    return Expectation(
        written,
        mean + predicted @ own,
        direction,
        whitened.square().sum(dim=2),
        (direction * (written - mean - given)).sum(dim=2),
    )


def parents_shares(
    sheaf: LearnedSheaf, linearized: LinearizedCircuit, expected: Expectation, node: str, answer: Tensor
) -> Shares:
    """Which parents carried a judged node away from what was expected of it; `linearized` under `frozen`."""
    place = sheaf.layout.judged.index(node)
    means = dict(zip(sheaf.layout.nodes, sheaf.bases.write_mean, strict=True)) if _is_centred(sheaf, node) else {}
    pushes = parents_push(linearized, node, expected.direction[place], answer, means)
    unusual = expected.unusual[place]
    scale = torch.where(unusual > 0, 1.0 / torch.where(unusual > 0, unusual, 1.0), 0.0)
    shares = {parent: push * scale for parent, push in pushes.items()}
    rest = 1.0 - sum(shares.values(), torch.zeros_like(unusual))
    return Shares(shares, rest, expected.unexplained[place] * scale)


def _is_centred(sheaf: LearnedSheaf, node: str) -> bool:
    """Whether the reference set knows what the node's parents write on average where the node reads."""
    return sheaf.at == "all" or Node.parse(node).kind is not Kind.HEAD


def parents_push(
    linearized: LinearizedCircuit, node: str, direction: Tensor, answer: Tensor, means: dict[str, Tensor]
) -> dict[str, Tensor]:
    """`g . rho_{u->v} (a_u - mean_u)` of each parent u through which something enters the node, (B,), in float64.

    The direction g, (B, d), is pulled back through the node's maps once; every parent is then one inner product.
    Parents that are not in `means` count from zero.
    """
    if node not in linearized.stalks:  # nothing enters it while attention patterns are held
        return {}
    stalk, pushes = linearized.stalks[node], dict[str, Tensor]()
    size = direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    cotangent = _at_answer((direction / size).to(linearized.dtype), stalk, answer)  # of length 1: safe in any dtype
    for entry in linearized.entries.get(node, ()):
        back = entry.operator.rmv(cotangent).squeeze(2).double() * size
        for edge in entry.edges:
            push = (back * _less_mean(linearized.stalks[edge.source], means.get(edge.source))).sum(dim=1)
            pushes[edge.source] = pushes[edge.source] + push if edge.source in pushes else push
    return pushes


def _at_answer(rows: Tensor, stalk: Stalk, answer: Tensor) -> Tensor:
    """Rows (B, d) at the answer position of a stalk and zero elsewhere, (B, T*n, 1)."""
    batch, positions, width = len(rows), *stalk.activation.shape[1:]
    whole = rows.new_zeros(batch, positions, width)
    at = answer if stalk.positions is not None else torch.zeros_like(answer)
    whole[torch.arange(batch, device=rows.device), at] = rows[:, :width]
    return whole.flatten(1).unsqueeze(2)


def _less_mean(stalk: Stalk, mean: Tensor | None) -> Tensor:
    """What a node wrote less a mean, (d,), at the positions that count, (B, T*d)."""
    activation = stalk.activation.double()
    return activation.flatten(1) if mean is None else (activation - mean).flatten(1) * stalk.weights
