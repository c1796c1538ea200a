"""The sheaf term: how far the observed activations are from being explained along the circuit's edges.

    C_sh = sqrt(sum_e ||rho_e a_u - a_v||^2) / (eps + sqrt(sum_e ||a_u||^2 + ||a_v||^2))      (equation 2)

`residual="edge"` is that. `"joint"` has one term for each node with parents, with the sum over its parents in
place of one parent. `"propagated"` runs the linearized circuit from its sources by itself and compares at the
sinks. `metric="relative"` measures each term position by position in its own units.

A local residual says nothing of whether it matters to the output; never call it faithfulness.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import add
from eics.linalg.host_device import to_device
from eics.linearized.circuit import LinearizedCircuit, Stalk, by_position
from eics.linearized.junctions import Images, joined
from eics.linearized.sweep import sweep_back

EPS = 1e-8


@dataclass(frozen=True)
class Terms:
    """Summands of the numerator by position, and what they are measured against; n of them, into nodes of one kind.

    `residual` is (B, n, T). `energy` is (B, n, T) where the metric goes by position, else (B, n, 1), or None where it
    is known of all edges together. `cosine`, (B, n), is that of `rho a_u` and `a_v` over all positions, nan where one
    of them is zero; None for a node.
    """

    names: tuple[Edge | str, ...]
    residual: Tensor
    energy: Tensor | None
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
    if residual == "joint":
        carried = dict(_carried(linearized, _columns(linearized)))
        return _combine(list(_joint_terms(linearized, carried, metric)), metric)
    return _by_edge(linearized, metric)


def sheaf_terms(linearized: LinearizedCircuit, *, residual: str, metric: str) -> tuple[SheafTerm, SheafTerm]:
    """C_sh in one of its forms, and by edge. What parents carry together is the sum of what each does."""
    if residual == "joint":
        carried: dict[str, Tensor] = {}
        by_edge = _by_edge(linearized, metric, carried)
        return _combine(list(_joint_terms(linearized, carried, metric)), metric), by_edge
    term = sheaf_term(linearized, residual=residual, metric=metric)
    return term, term if residual == "edge" else _by_edge(linearized, metric)


def _by_edge(linearized: LinearizedCircuit, metric: str, carried: dict[str, Tensor] | None = None) -> SheafTerm:
    energy = None if metric == "relative" else _energy(linearized)
    return _combine(list(_edge_terms(linearized, metric, carried)), metric, energy)


def propagated_c_sh(linearized: LinearizedCircuit, *, metric: str = "euclidean") -> Tensor:
    """C_sh of `residual="propagated"` alone, (B,), without the pass that finds out who makes it."""
    propagated = _propagate(linearized)
    return _combine(list(_sink_terms(linearized, propagated, metric)), metric).c_sh


def _edge_terms(
    linearized: LinearizedCircuit, metric: str, carried: dict[str, Tensor] | None = None
) -> Iterator[Terms]:
    """||rho a_u - a_v||^2 for each edge. `carried`, where it is given, gets the sum over each node's edges."""
    return (_terms_of(images, linearized, metric) for images in joined(_images(linearized, carried)))


def _images(linearized: LinearizedCircuit, carried: dict[str, Tensor] | None) -> Iterator[Images]:
    """What edges predict, junction by junction."""
    observed = {} if carried is None else _short_columns(linearized)
    for junction in linearized.junctions:
        written = True
        for images in junction.images(linearized.stalks):
            written = images.written
            if carried is not None and written:
                _count_in(carried, images.edges[0].target, images.predicted.sum(dim=1).flatten(1))
            yield images
        if carried is not None and not written:
            for node, value in junction.carry(observed):
                _count_in(carried, node, linearized.written(node, value).squeeze(2))


def _count_in(carried: dict[str, Tensor], node: str, block: Tensor) -> None:
    known = carried.get(node)
    carried[node] = block if known is None else known + block


def _short_columns(linearized: LinearizedCircuit) -> dict[str, Tensor]:
    """The observed activations as blocks of one vector, z of those that are carried so."""
    found = {}
    for node, stalk in linearized.stalks.items():
        value = stalk.z if node in linearized.writers else stalk.activation
        assert value is not None
        found[node] = value.flatten(1).unsqueeze(2)
    return found


def _terms_of(images: Images, linearized: LinearizedCircuit, metric: str) -> Terms:
    """The terms of edges from what they predict."""
    predicted, observed = images.predicted, images.observed
    lengths = _length(predicted)  # (B, edges, T)
    unit = observed.flatten(2) / _length(observed.flatten(2)).unsqueeze(-1)  # nothing overflows
    cosine = (predicted.flatten(2) * unit).sum(dim=2) / _length(lengths)
    energy = lengths.square() + by_position(observed) if metric == "relative" else None
    positions = linearized.stalks[images.edges[0].target].positions
    return Terms(images.edges, by_position(predicted - observed), energy, positions, cosine.clamp(-1.0, 1.0))


def _length(vectors: Tensor) -> Tensor:
    """Norms over the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


def _joint_terms(linearized: LinearizedCircuit, carried: Mapping[str, Tensor], metric: str) -> Iterator[Terms]:
    """||sum_u rho a_u - (a_v - b_v)||^2 against ||sum_u rho a_u||^2 + ||a_v - b_v||^2, for each node; `carried` are the
    sums."""
    for node in linearized.circuit.inner:
        stalk = linearized.stalks[node]
        explained = (
            carried[node].reshape(stalk.activation.shape) if node in carried else torch.zeros_like(stalk.activation)
        )
        to_explain = stalk.activation - stalk.constant
        energy = by_position(explained) + by_position(to_explain)
        yield _node_terms(node, by_position(explained - to_explain), energy, stalk, metric)


def _node_terms(node: str, residual: Tensor, energy: Tensor, stalk: Stalk, metric: str) -> Terms:
    """A node's own, from (B, T)."""
    if metric == "euclidean":
        energy = energy.sum(dim=1, keepdim=True)
    return Terms((node,), residual.unsqueeze(1), energy.unsqueeze(1), stalk.positions)


def _combine(terms: Sequence[Terms], metric: str, energy: Tensor | None = None) -> SheafTerm:
    """C_sh from all terms. `energy`, (B,), is what they are measured against all together, where they do not say."""
    alike: dict[object, list[Terms]] = {}  # few kinds of stalks: one operation for all of a kind
    for term in terms:
        alike.setdefault((id(term.positions), term.residual.shape[2]), []).append(term)
    joined = [_joined(some) for some in alike.values()]
    if metric == "relative":
        energies = [term.energy for term in joined if term.energy is not None]
        ratios = [_divide(term.residual, energy) for term, energy in zip(joined, energies, strict=True)]
        counted = add((energy > 0).sum(dim=(1, 2)) for energy in energies)
        residual = torch.cat([ratio.sum(dim=2) for ratio in ratios], dim=1)
        total = residual.sum(dim=1)
        c_sh = (total / counted.clamp(min=1)).sqrt()
    else:
        ratios = [term.residual for term in joined]
        residual = torch.cat([ratio.sum(dim=2) for ratio in ratios], dim=1)
        total = residual.sum(dim=1)
        if energy is None:
            energy = add(term.energy.sum(dim=(1, 2)) for term in joined if term.energy is not None)
        c_sh = total.sqrt() / (EPS + energy.sqrt())
    cosines = [term.cosine for term in joined if term.cosine is not None]
    return SheafTerm(
        c_sh=c_sh,
        names=tuple(name for term in joined for name in term.names),
        residual=residual,
        share=_divide(residual, total.unsqueeze(1)),
        first_position=_first_position(ratios, [term.positions for term in joined], total),
        cosine=torch.cat(cosines, dim=1) if len(cosines) == len(joined) else None,
    )


def _joined(terms: Sequence[Terms]) -> Terms:
    """Terms of stalks of one kind as one."""

    def side_by_side(tensors: Sequence[Tensor | None]) -> Tensor | None:
        known = [tensor for tensor in tensors if tensor is not None]
        return None if not known else known[0] if len(known) == 1 else torch.cat(known, dim=1)

    residual = side_by_side([term.residual for term in terms])
    assert residual is not None
    energy, cosine = (side_by_side([getattr(term, name) for term in terms]) for name in ("energy", "cosine"))
    return Terms(tuple(name for term in terms for name in term.names), residual, energy, terms[0].positions, cosine)


def _energy(linearized: LinearizedCircuit) -> Tensor:
    """sum_e ||a_u||^2 + ||a_v||^2, (B,)."""
    ends = Counter(node for edge in linearized.edges for node in (edge.source, edge.target))
    norms = [linearized.stalks[node].norm.expand(linearized.batch) for node in ends]
    times = to_device(list(ends.values()), norms[0].device, norms[0].dtype)
    return (torch.stack(norms, dim=1).square() * times).sum(dim=1)


def _propagated(linearized: LinearizedCircuit, metric: str) -> SheafTerm:
    """||a - p|| over the sinks, and its causes.

    The error `e = a - p` obeys `e_v = r_v + sum_u rho e_u` with the joint residuals `r_v` (against the means, where
    there are some). So with the sinks' (weighted) errors as cotangents, one transposed sweep gives `<r_v carried to the
    sinks, error>` for all v.
    """
    circuit, stalks, propagated = linearized.circuit, linearized.stalks, _propagate(linearized)
    terms = list(_sink_terms(linearized, propagated, metric))
    whole = _combine(terms, metric)
    cotangents = {}
    for node, term in zip(circuit.sinks, terms, strict=True):
        error = stalks[node].activation - propagated[node].view_as(stalks[node].activation)
        if metric == "relative":
            assert term.energy is not None
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


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient, 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def _first_position(parts: Sequence[Tensor], positions: Sequence[Tensor | None], total: Tensor) -> Tensor | None:
    pairs = [(part, known) for part, known in zip(parts, positions, strict=True) if known is not None]
    if not pairs:
        return None
    return _divide(add(torch.where(known == 0, part, 0.0).sum(dim=(1, 2)) for part, known in pairs), total)
