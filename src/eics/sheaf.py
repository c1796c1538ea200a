"""The sheaf term: how far the observed activations are from being explained along the circuit's edges.

    C_sh = sqrt(sum_e ||rho_e a_u - a_v||^2) / (eps + sqrt(sum_e ||a_u||^2 + ||a_v||^2))      (equation 2)

`residual="edge"` is that. `"joint"` has one term for each node with parents, with the sum over its parents in
place of one parent. `"propagated"` runs the linearized circuit from its sources by itself and compares at the
sinks. `metric="relative"` measures each term position by position in its own units.

A local residual says nothing of whether it matters to the output; never call it faithfulness.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuit import Edge
from eics.junctions import Images
from eics.linearize import LinearizedCircuit, Stalk
from eics.paths import sweep_back

EPS = 1e-8


@dataclass(frozen=True)
class Terms:
    """Summands of the numerator by position, and what they are measured against; n of them, into one node.

    `residual` is (B, n, T). `energy` is (B, n, T) where the metric goes by position, else (B, n, 1). `cosine`, (B, n),
    is that of `rho a_u` and `a_v` over all positions, nan where one of them is zero; None for a node.
    """

    names: tuple[Edge | str, ...]
    residual: Tensor
    energy: Tensor
    positions: Tensor | None
    cosine: Tensor | None = None


@dataclass(frozen=True)
class SheafTerm:
    """C_sh for each prompt, and who makes it.

    Attributes:
        c_sh: (B,).
        names: edges, or nodes where the residual goes by node.
        residual: squared residual of each name in the chosen metric, (B, names).
        share: of the numerator, (B, names); sums to 1, or is 0 where there is no residual at all.
        first_position: share of token position 0, (B,); None where no stalk has positions.
        cosine: of `rho a_u` and `a_v` for each edge, (B, names), nan where there is none; None where names are nodes.
    """

    c_sh: Tensor
    names: tuple[Edge | str, ...]
    residual: Tensor
    share: Tensor
    first_position: Tensor | None
    cosine: Tensor | None = None


def sheaf_term(linearized: LinearizedCircuit, *, residual: str = "edge", metric: str = "euclidean") -> SheafTerm:
    """C_sh in one of its three forms and two metrics."""
    if residual == "propagated":
        return _propagated(linearized, metric)
    terms = _edge_terms if residual == "edge" else _joint_terms
    return _combine(list(terms(linearized, metric)), metric, linearized.batch)


def propagated_c_sh(linearized: LinearizedCircuit, *, metric: str = "euclidean") -> Tensor:
    """C_sh of `residual="propagated"` alone, (B,), without the pass that finds out who makes it."""
    propagated = _propagate(linearized)
    return _combine(list(_sink_terms(linearized, propagated, metric)), metric, linearized.batch).c_sh


def _edge_terms(linearized: LinearizedCircuit, metric: str) -> Iterator[Terms]:
    """||rho a_u - a_v||^2 for each edge."""
    energies = {node: stalk.flat.square().sum(dim=1) for node, stalk in linearized.stalks.items()}
    for junction in linearized.junctions:
        for images in junction.images(linearized.stalks):
            yield _terms_of(images, linearized, metric, energies)


def _terms_of(images: Images, linearized: LinearizedCircuit, metric: str, energies: dict[str, Tensor]) -> Terms:
    """The terms of edges into one node."""
    observed, predicted = images.observed.unsqueeze(1), images.predicted
    target = images.edges[0].target
    if metric == "relative":
        energy = by_position(predicted) + by_position(observed)
    else:
        pairs = [energies[edge.source] + energies[target] for edge in images.edges]
        energy = torch.stack(pairs, dim=1).unsqueeze(2)
    cosine = _cosine(predicted.flatten(2), observed.flatten(2))
    residual = by_position(predicted - observed)
    return Terms(images.edges, residual, energy, linearized.stalks[target].positions, cosine)


def _cosine(predicted: Tensor, observed: Tensor) -> Tensor:
    """Of flat stalks, (B, n, dim): (B, n). Each is divided by its norm first, so that nothing overflows."""
    return (_unit(predicted) * _unit(observed)).sum(dim=2).clamp(-1.0, 1.0)


def _unit(flat: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(flat, dim=2, keepdim=True)
    return flat / length


def _joint_terms(linearized: LinearizedCircuit, metric: str) -> Iterator[Terms]:
    """||sum_u rho a_u - (a_v - b_v)||^2 against ||sum_u rho a_u||^2 + ||a_v - b_v||^2, for each node."""
    observed = _columns(linearized)
    for node, carried in _carried(linearized, observed):
        stalk = linearized.stalks[node]
        explained = carried.view_as(stalk.activation)
        to_explain = stalk.activation - stalk.constant
        energy = by_position(explained) + by_position(to_explain)
        yield _node_terms(node, by_position(explained - to_explain), energy, stalk, metric)


def _node_terms(node: str, residual: Tensor, energy: Tensor, stalk: Stalk, metric: str) -> Terms:
    """A node's own, from (B, T)."""
    if metric == "euclidean":
        energy = energy.sum(dim=1, keepdim=True)
    return Terms((node,), residual.unsqueeze(1), energy.unsqueeze(1), stalk.positions)


def _combine(terms: Sequence[Terms], metric: str, batch: int) -> SheafTerm:
    if metric == "relative":
        ratios = [torch.where(t.energy > 0, t.residual / torch.where(t.energy > 0, t.energy, 1.0), 0.0) for t in terms]
        counted = sum((t.energy > 0).sum(dim=(1, 2)) for t in terms)
        residual = torch.cat([ratio.sum(dim=2) for ratio in ratios], dim=1)
        c_sh = (residual.sum(dim=1) / torch.as_tensor(counted).clamp(min=1)).sqrt()
    else:
        ratios = [term.residual for term in terms]
        residual = torch.cat([ratio.sum(dim=2) for ratio in ratios], dim=1)
        energy = torch.cat([term.energy.sum(dim=2) for term in terms], dim=1).sum(dim=1)
        c_sh = residual.sum(dim=1).sqrt() / (EPS + energy.sqrt())
    total = residual.sum(dim=1)
    cosines = [term.cosine for term in terms if term.cosine is not None]
    return SheafTerm(
        c_sh=c_sh,
        names=tuple(name for term in terms for name in term.names),
        residual=residual,
        share=_divide(residual, total.unsqueeze(1)),
        first_position=_first_position(ratios, [term.positions for term in terms], total, batch),
        cosine=torch.cat(cosines, dim=1) if len(cosines) == len(terms) else None,
    )


def _propagated(linearized: LinearizedCircuit, metric: str) -> SheafTerm:
    """||a - p|| over the sinks, and its causes.

    The error `e = a - p` obeys `e_v = r_v + sum_u rho e_u` with the joint residuals `r_v` (against the means, where
    there are some). So with the sinks' (weighted) errors as cotangents, one transposed sweep gives `<r_v carried to the
    sinks, error>` for all v.
    """
    circuit, stalks, propagated = linearized.circuit, linearized.stalks, _propagate(linearized)
    terms = list(_sink_terms(linearized, propagated, metric))
    whole = _combine(terms, metric, linearized.batch)
    cotangents = {}
    for node, term in zip(circuit.sinks, terms, strict=True):
        error = stalks[node].activation - propagated[node].view_as(stalks[node].activation)
        if metric == "relative":
            error = _divide(error, term.energy.squeeze(1).unsqueeze(2))
        cotangents[node] = error.flatten(1).unsqueeze(2)
    total = whole.residual.sum(dim=1)
    shares = _carried_shares(linearized, cotangents, total)
    return SheafTerm(whole.c_sh, circuit.inner, *shares, whole.first_position)


def _propagate(linearized: LinearizedCircuit) -> dict[str, Tensor]:
    """The linearized circuit run by itself: `p_v = a_v` at sources, `p_v = b_v + sum_u rho p_u` elsewhere.

    With a reference, of means `m_u` of writes, `p_v = n_v + sum_u rho (p_u - m_u)`, where `n_v` is what the node writes
    where all that it reads is at its mean: the circuit carries departures from the means, and the rest stays there.
    """
    stalks, sources = linearized.stalks, linearized.circuit.sources
    propagated = {node: stalks[node].flat.unsqueeze(2) for node in sources}
    away = {node: stalks[node].less_mean(propagated[node]) for node in sources}
    for level in linearized.levels():
        for node, carried in linearized.carry(level, away).items():
            propagated[node] = carried + stalks[node].flat_rest.unsqueeze(2)
            away[node] = stalks[node].less_mean(propagated[node])
    return propagated


def _sink_terms(linearized: LinearizedCircuit, propagated: dict[str, Tensor], metric: str) -> Iterator[Terms]:
    for node in linearized.circuit.sinks:
        yield _sink_term(node, linearized.stalks[node], propagated[node].squeeze(2), metric)


def _sink_term(node: str, stalk: Stalk, propagated: Tensor, metric: str) -> Terms:
    expected = propagated.view_as(stalk.activation)
    energy = by_position(stalk.activation - stalk.constant) + by_position(expected - stalk.constant)
    return _node_terms(node, by_position(stalk.activation - expected), energy, stalk, metric)


def _carried_shares(
    linearized: LinearizedCircuit, cotangents: dict[str, Tensor], total: Tensor
) -> tuple[Tensor, Tensor]:
    """Local squared residuals and carried shares of the nodes with parents, (B, nodes) each."""
    circuit, stalks = linearized.circuit, linearized.stalks
    away = {node: stalks[node].less_mean(block) for node, block in _columns(linearized).items()}
    residuals = {
        node: (stalks[node].flat - stalks[node].flat_rest).unsqueeze(2) - carried
        for node, carried in _carried(linearized, away)
    }
    carried = dict.fromkeys(circuit.inner, torch.zeros_like(total))
    for node, cotangent in sweep_back(linearized, linearized.levels(), cotangents):
        carried[node] = (residuals[node] * cotangent).sum(dim=(1, 2))
    local = torch.stack([residual.square().sum(dim=(1, 2)) for residual in residuals.values()], dim=1)
    return local, _divide(torch.stack(list(carried.values()), dim=1), total.unsqueeze(1))


def _carried(linearized: LinearizedCircuit, values: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """sum_u rho_{u->v} values_u for each node with parents, in topological order."""
    for level in linearized.levels():
        carried = linearized.carry(level, values)
        yield from ((node, carried[node]) for node in level.nodes)


def _columns(linearized: LinearizedCircuit) -> dict[str, Tensor]:
    """The observed activations as blocks of one vector."""
    return {node: stalk.flat.unsqueeze(2) for node, stalk in linearized.stalks.items()}


def by_position(stalk: Tensor) -> Tensor:
    """Squared norm at each position: (..., T, d) to (..., T)."""
    return stalk.square().sum(dim=-1)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient, 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator / torch.where(denominator > 0, denominator, 1.0), 0.0)


def _first_position(
    parts: Sequence[Tensor], positions: Sequence[Tensor | None], total: Tensor, batch: int
) -> Tensor | None:
    if all(known is None for known in positions):
        return None
    at_first = total.new_zeros(batch)
    for part, known in zip(parts, positions, strict=True):
        if known is not None:
            at_first = at_first + part[:, :, known == 0].sum(dim=(1, 2))
    return _divide(at_first, total)
