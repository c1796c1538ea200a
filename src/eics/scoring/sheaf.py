"""The sheaf term: how far the observed activations are from being explained along the circuit's edges.

    C_sh = sqrt(sum_e ||rho_e a_u - a_v||^2) / (eps + sqrt(sum_e ||a_u||^2 + ||a_v||^2))      (equation 2)

`sheaf_term` with `residual="edge"` is that. `"joint"` has one term for each node with parents, with the sum over its
parents in place of one parent. `"propagated"` runs the linearized circuit from its sources by itself and compares at
the sinks. `metric="relative"` measures each term position by position in its own units.

A local residual says nothing about whether it matters to the output; never call it faithfulness.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import add
from eics.linalg.host_device import to_device
from eics.linearized.circuit import LinearizedCircuit, Stalk
from eics.linearized.sweep import EdgePredictions, Engine

EPS = 1e-8


@dataclass(frozen=True)
class Terms:
    """Summands of the numerator by position, and what they are measured against; n of them, into nodes of one kind.

    `residual` is (B, n, T). `energy` is (B, n, T) if the metric goes by position, else (B, n, 1), or None if it is
    known only for all edges together. `cosine`, (B, n), is that of `rho a_u` and `a_v` over all positions, nan if one
    of them is zero; None for a node.
    """

    names: tuple[Edge | str, ...]
    residual: Tensor
    energy: Tensor | None
    positions: Tensor | None
    cosine: Tensor | None = None


@dataclass(frozen=True)
class SheafTerm:
    """C_sh for each prompt, and its attribution to edges or nodes.

    Attributes:
        c_sh: (B,).
        names: edges, or nodes if the residual goes by node.
        residual: squared residual of each name in the chosen metric, (B, names).
        share: of the numerator, (B, names); sums to 1, or is 0 if there is no residual at all.
        first_position: share of token position 0, (B,); None if no stalk has positions.
        cosine: of `rho a_u` and `a_v` for each edge, (B, names), nan if one is zero; None if names are nodes.
    """

    c_sh: Tensor
    names: tuple[Edge | str, ...]
    residual: Tensor
    share: Tensor
    first_position: Tensor | None
    cosine: Tensor | None = None


def sheaf_term(engine: Engine, *, residual: str = "edge", metric: str = "euclidean") -> SheafTerm:
    """C_sh in one of its three forms and two metrics."""
    if residual == "propagated":
        return _propagated(engine, metric)
    if residual == "joint":
        return _combine(list(_local_terms(engine, residual, metric)), metric)
    assert residual == "edge", residual  # `calibrated` is judged elsewhere
    return _by_edge(engine, metric)


def sheaf_terms(engine: Engine, *, residual: str, metric: str) -> tuple[SheafTerm, SheafTerm]:
    """C_sh in one of its forms, and by edge. What parents carry together is the sum of what each carries."""
    if residual == "joint":
        carried: dict[str, Tensor] = {}
        by_edge = _by_edge(engine, metric, carried)
        return _combine(list(_joint_terms(engine.linearized, carried, metric)), metric), by_edge
    term = sheaf_term(engine, residual=residual, metric=metric)
    return term, term if residual == "edge" else _by_edge(engine, metric)


def propagated_c_sh(engine: Engine, *, metric: str = "euclidean") -> Tensor:
    """C_sh of `residual="propagated"` alone, (B,), without the transposed sweep that attributes it to nodes."""
    return _combine(list(_sink_terms(engine.linearized, _propagate(engine), metric)), metric).c_sh


def position_shares(engine: Engine, *, residual: str, metric: str) -> dict[str, Tensor]:
    """Each node's share of the squared residual at each row of its stalk, (B, T); the rows sum to the node's share.

    By edge, a node has the shares of the edges into it. A share of `propagated` is split by where its cause lies: at
    which rows of the node the residual arises that reaches the sinks; as the whole share, it may be negative.
    """
    parts: dict[str, Tensor] = {}
    if residual == "propagated":
        whole, cotangents = _sink_errors(engine, metric)
        total, residuals = whole.residual.sum(dim=1), _local_residuals(engine)
        parts = {node: torch.zeros_like(engine.linearized.stalks[node].lengths) for node in residuals}
        for node, cotangent in engine.pull(cotangents):
            along = (residuals[node] * cotangent).view(engine.linearized.stalks[node].activation.shape)
            parts[node] = along.sum(dim=2)
    else:
        for term in _local_terms(engine, residual, metric):
            measured = term.residual
            if metric == "relative":
                assert term.energy is not None
                measured = _divide(term.residual, term.energy)
            for name, part in zip(term.names, measured.unbind(dim=1), strict=True):
                node = name.target if isinstance(name, Edge) else name
                parts[node] = parts[node] + part if node in parts else part
        total = add(part.sum(dim=1) for part in parts.values())
    return {node: _divide(part, total.unsqueeze(1)) for node, part in parts.items()}


def _local_terms(engine: Engine, residual: str, metric: str) -> Iterator[Terms]:
    """The terms of `joint` or `edge`."""
    if residual == "joint":
        carried = {node: block.squeeze(2) for node, block in engine.carry(_columns(engine.linearized))}
        return _joint_terms(engine.linearized, carried, metric)
    return (_terms_of(predictions, engine.linearized, metric) for predictions in engine.edge_predictions())


def _by_edge(engine: Engine, metric: str, carried: dict[str, Tensor] | None = None) -> SheafTerm:
    """||rho a_u - a_v||^2 for each edge. `carried`, if given, gets the sum over each node's edges."""
    energy = None if metric == "relative" else _energy(engine.linearized)
    terms = [_terms_of(predictions, engine.linearized, metric) for predictions in engine.edge_predictions(carried)]
    return _combine(terms, metric, energy)


def _terms_of(predictions: EdgePredictions, linearized: LinearizedCircuit, metric: str) -> Terms:
    predicted, observed = predictions.predicted, predictions.observed
    lengths = _length(predicted)  # (B, edges, T)
    unit = observed.flatten(2) / _length(observed.flatten(2)).unsqueeze(-1)  # nothing overflows
    cosine = (predicted.flatten(2) * unit).sum(dim=2) / _length(lengths)
    energy = lengths.square() + by_position(observed) if metric == "relative" else None
    positions = linearized.stalks[predictions.edges[0].target].positions
    return Terms(predictions.edges, by_position(predicted - observed), energy, positions, cosine.clamp(-1.0, 1.0))


def _joint_terms(linearized: LinearizedCircuit, carried: Mapping[str, Tensor], metric: str) -> Iterator[Terms]:
    """||sum_u rho a_u - (a_v - b_v)||^2 against ||sum_u rho a_u||^2 + ||a_v - b_v||^2 for each node; `carried` are the
    sums."""
    for node in linearized.circuit.inner:
        stalk = linearized.stalks[node]
        explained = carried[node].reshape(stalk.activation.shape)
        to_explain = stalk.activation - stalk.constant
        energy = by_position(explained) + by_position(to_explain)
        yield _node_terms(node, by_position(explained - to_explain), energy, stalk, metric)


def _node_terms(node: str, residual: Tensor, energy: Tensor, stalk: Stalk, metric: str) -> Terms:
    """One node's terms from its residual and energy by position, (B, T)."""
    if metric == "euclidean":
        energy = energy.sum(dim=1, keepdim=True)
    return Terms((node,), residual.unsqueeze(1), energy.unsqueeze(1), stalk.positions)


def _combine(terms: Sequence[Terms], metric: str, energy: Tensor | None = None) -> SheafTerm:
    """C_sh from all terms. `energy`, (B,), is what all of them together are measured against, if they do not say."""
    by_kind: dict[object, list[Terms]] = {}  # few kinds of stalks: one operation serves all of a kind
    for term in terms:
        by_kind.setdefault((id(term.positions), term.residual.shape[2]), []).append(term)
    kinds = [_joined(alike) for alike in by_kind.values()]
    if metric == "relative":
        energies = [kind.energy for kind in kinds if kind.energy is not None]
        parts = [_divide(kind.residual, own) for kind, own in zip(kinds, energies, strict=True)]
        counted = add((own > 0).sum(dim=(1, 2)) for own in energies)
        residual = torch.cat([part.sum(dim=2) for part in parts], dim=1)
        total = residual.sum(dim=1)
        c_sh = (total / counted.clamp(min=1)).sqrt()
    else:
        parts = [kind.residual for kind in kinds]
        residual = torch.cat([part.sum(dim=2) for part in parts], dim=1)
        total = residual.sum(dim=1)
        if energy is None:
            energy = add(kind.energy.sum(dim=(1, 2)) for kind in kinds if kind.energy is not None)
        c_sh = total.sqrt() / (EPS + energy.sqrt())
    cosines = [kind.cosine for kind in kinds if kind.cosine is not None]
    return SheafTerm(
        c_sh=c_sh,
        names=tuple(name for kind in kinds for name in kind.names),
        residual=residual,
        share=_divide(residual, total.unsqueeze(1)),
        first_position=_first_position(parts, [kind.positions for kind in kinds], total),
        cosine=torch.cat(cosines, dim=1) if len(cosines) == len(kinds) else None,
    )


def _joined(terms: Sequence[Terms]) -> Terms:
    """Terms of stalks of one kind as one."""

    def side_by_side(name: str) -> Tensor | None:
        tensors = [tensor for term in terms if (tensor := getattr(term, name)) is not None]
        return None if not tensors else tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1)

    residual = side_by_side("residual")
    assert residual is not None
    names = tuple(name for term in terms for name in term.names)
    return Terms(names, residual, side_by_side("energy"), terms[0].positions, side_by_side("cosine"))


def _energy(linearized: LinearizedCircuit) -> Tensor:
    """sum_e ||a_u||^2 + ||a_v||^2, (B,)."""
    ends = Counter(node for edge in linearized.edges for node in (edge.source, edge.target))
    norms = [linearized.stalks[node].norm.expand(linearized.batch) for node in ends]
    times = to_device(list(ends.values()), norms[0].device, norms[0].dtype)
    return (torch.stack(norms, dim=1).square() * times).sum(dim=1)


def _propagated(engine: Engine, metric: str) -> SheafTerm:
    """||a - p|| over the sinks, and its causes.

    The error `e = a - p` obeys `e_v = r_v + sum_u rho e_u` with the joint residuals `r_v` (against the means, if there
    are some). So with the sinks' (weighted) errors as cotangents, one transposed sweep gives `<r_v carried to the
    sinks, error>` for all v.
    """
    whole, cotangents = _sink_errors(engine, metric)
    shares = _carried_shares(engine, cotangents, whole.residual.sum(dim=1))
    return SheafTerm(whole.c_sh, engine.linearized.circuit.inner, *shares, whole.first_position)


def _sink_errors(engine: Engine, metric: str) -> tuple[SheafTerm, dict[str, Tensor]]:
    """The term at the sinks, and the (weighted) error at each, a block of one vector."""
    circuit, stalks, propagated = engine.linearized.circuit, engine.linearized.stalks, _propagate(engine)
    terms = list(_sink_terms(engine.linearized, propagated, metric))
    cotangents = {}
    for node, term in zip(circuit.sinks, terms, strict=True):
        error = stalks[node].activation - propagated[node].view_as(stalks[node].activation)
        if metric == "relative":
            assert term.energy is not None
            error = _divide(error, term.energy.squeeze(1).unsqueeze(2))
        cotangents[node] = error.flatten(1).unsqueeze(2)
    return _combine(terms, metric), cotangents


def _propagate(engine: Engine) -> dict[str, Tensor]:
    """The linearized circuit run by itself: `p_v = a_v` at sources, `p_v = b_v + sum_u rho p_u` elsewhere.

    With a reference set, of means `m_u` of writes, `p_v = n_v + sum_u rho (p_u - m_u)`, where `n_v` is what the node
    writes if everything that it reads is at its mean: the circuit carries departures from the means, and the rest
    stays.
    """
    stalks, sources = engine.linearized.stalks, engine.linearized.circuit.sources
    propagated = {node: stalks[node].flat.unsqueeze(2) for node in sources}
    departures = {node: stalks[node].less_mean(propagated[node]) for node in sources}
    for node, carried in engine.carry(departures):
        propagated[node] = carried + stalks[node].flat_rest.unsqueeze(2)
        departures[node] = stalks[node].less_mean(propagated[node])
    return propagated


def _sink_terms(linearized: LinearizedCircuit, propagated: dict[str, Tensor], metric: str) -> Iterator[Terms]:
    for node in linearized.circuit.sinks:
        stalk = linearized.stalks[node]
        expected = propagated[node].squeeze(2).view_as(stalk.activation)
        energy = by_position(stalk.activation - stalk.constant) + by_position(expected - stalk.constant)
        yield _node_terms(node, by_position(stalk.activation - expected), energy, stalk, metric)


def _carried_shares(engine: Engine, cotangents: dict[str, Tensor], total: Tensor) -> tuple[Tensor, Tensor]:
    """Local squared residuals and carried shares of the nodes with parents, (B, nodes) each."""
    residuals = _local_residuals(engine)
    carried = dict.fromkeys(engine.linearized.circuit.inner, torch.zeros_like(total))
    for node, cotangent in engine.pull(cotangents):
        carried[node] = (residuals[node] * cotangent).sum(dim=(1, 2))
    local = torch.stack([residual.square().sum(dim=(1, 2)) for residual in residuals.values()], dim=1)
    return local, _divide(torch.stack(list(carried.values()), dim=1), total.unsqueeze(1))


def _local_residuals(engine: Engine) -> dict[str, Tensor]:
    """What each node with parents wrote beyond what its parents carry (from their means, if there are some)."""
    stalks = engine.linearized.stalks
    departures = {node: stalks[node].less_mean(block) for node, block in _columns(engine.linearized).items()}
    return {
        node: (stalks[node].flat - stalks[node].flat_rest).unsqueeze(2) - carried
        for node, carried in engine.carry(departures)
    }


def _columns(linearized: LinearizedCircuit) -> dict[str, Tensor]:
    """The observed activations as blocks of one vector."""
    return {node: stalk.flat.unsqueeze(2) for node, stalk in linearized.stalks.items()}


def by_position(stalk: Tensor) -> Tensor:
    """Squared norm at each position: (..., T, d) to (..., T)."""
    return _length(stalk).square()


def _length(vectors: Tensor) -> Tensor:
    """Norms over the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient, 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def _first_position(parts: Sequence[Tensor], positions: Sequence[Tensor | None], total: Tensor) -> Tensor | None:
    pairs = [(part, own) for part, own in zip(parts, positions, strict=True) if own is not None]
    if not pairs:
        return None
    return _divide(add(torch.where(own == 0, part, 0.0).sum(dim=(1, 2)) for part, own in pairs), total)
