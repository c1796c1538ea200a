"""Maps to the answer position as sums of Kronecker products, path by path.

If every map on the way is a Kronecker product (a head whose pattern is frozen), so is every path:

    X_h = sum_p c_p^T (x) O_p         c_p: over positions, for each prompt; O_p: (e, d), of weights alone

and `X_h X_h'^T = sum_pq (c_p . c_q) O_p O_q^T`: the products of weights are the same for all prompts, and positions
enter as one number for each pair of paths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import scale_by_position
from eics.linalg.matrices import gram64
from eics.linalg.memory import memory_bound
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import Scaled
from eics.linearized.circuit import LinearizedCircuit
from eics.transformer.head import HeadMap


@dataclass(frozen=True)
class _FrozenHead:
    """J = positions (x) (out into) of a head whose pattern is frozen: (B, T, T), (d, e) and (e, d)."""

    positions: Tensor
    out: Tensor
    into: Tensor

    @classmethod
    def of(cls, operator: LinearOperator) -> "_FrozenHead | None":
        """None for any other map, or if scales differ within a position."""
        head = operator.base if isinstance(operator, Scaled) else operator
        if not isinstance(head, HeadMap) or len(head.places) > 1:
            return None
        if not head.state.frozen or head.state.post is not None:
            return None
        positions = head.activations.pattern[0] / head.state.norm.scale.mT
        if isinstance(operator, Scaled):
            left, right = (scale_by_position(s, positions.shape[1]) for s in (operator.left, operator.right))
            if left is None or right is None:
                return None
            positions = left.unsqueeze(2) * positions * right.unsqueeze(1)
        return cls(positions, head.w_o[0], head.w_in[0])


@dataclass(frozen=True)
class _Term:
    """A path from a source to the `owner`-th of the nodes, with its c, (B, T), and O, (e, d)."""

    owner: int
    source: str
    positions: Tensor
    weights: Tensor


@dataclass(frozen=True)
class KroneckerPaths:
    """All paths from `sources` to the few numbers that `nodes` write through at one position of each prompt."""

    linearized: LinearizedCircuit
    sources: tuple[str, ...]
    terms: tuple[_Term, ...]
    owners: int

    @classmethod
    def of(
        cls, linearized: LinearizedCircuit, sources: Sequence[str], answer_positions: Tensor, nodes: Sequence[str]
    ) -> "KroneckerPaths | None":
        """None if a map is no Kronecker product, or if there are too many paths for the memory bound."""
        upstream = linearized.circuit.ancestors(nodes)
        maps: dict[str, list[tuple[_FrozenHead, Sequence[Edge]]]] = {}
        for node in (node for node in linearized.circuit.inner if node in upstream):
            for entry in linearized.entries[node]:
                frozen = _FrozenHead.of(entry.operator)
                if frozen is None:
                    return None
                maps.setdefault(node, []).append((frozen, entry.edges))
        prompts = torch.arange(len(answer_positions), device=answer_positions.device)

        def walk(owner: int, node: str, row: Tensor, weights: Tensor | None) -> Iterator[_Term]:
            """Backwards from a node: what its cotangent `row (x) weights` is at the sources."""
            for frozen, edges in maps.get(node, ()):
                positions = frozen.positions.expand(len(answer_positions), -1, -1)
                if weights is None:  # the head itself
                    c, o = positions[prompts, answer_positions], frozen.into
                else:
                    c, o = (row.unsqueeze(1) @ positions).squeeze(1), (weights @ frozen.out) @ frozen.into
                for edge in edges:
                    if edge.source in sources:
                        mask = linearized.stalks[edge.source].mask
                        yield _Term(owner, edge.source, c if mask is None else c * mask, o)
                    else:
                        yield from walk(owner, edge.source, c, o)

        found: list[_Term] = []
        for owner, node in enumerate(nodes):
            for term in walk(owner, node, torch.empty(0), None):
                found.append(term)
                if (len(found) * term.weights.shape[0]) ** 2 * 8 > memory_bound():
                    return None
        return cls(linearized, tuple(sources), tuple(found), len(nodes)) if found else None

    def gram(self, right: Tensor | None) -> Tensor | None:
        """X X^T, columns scaled, (B, nodes*e, nodes*e) in float64; None if scales differ within a position."""
        total = None
        for source, scale in self._scales(right).items():
            if scale is None:
                return None
            terms = [term for term in self.terms if term.source == source]
            if terms:
                part = self._of_source(terms, scale)
                total = part if total is None else total + part
        return total

    def _of_source(self, terms: Sequence[_Term], scale: Tensor) -> Tensor:
        width, count = terms[0].weights.shape[0], len(terms)
        rows = torch.stack([term.positions for term in terms], dim=1).double() * scale.unsqueeze(1)  # (B, P, T)
        shared = rows @ rows.mT  # (B, P, P)
        products = gram64(torch.cat([term.weights for term in terms])).view(count, width, count, width)
        owner = torch.tensor([term.owner for term in terms], device=rows.device)
        belongs = (owner == torch.arange(self.owners, device=rows.device).unsqueeze(1)).double()  # (nodes, P)
        summed = (shared.unsqueeze(2) * belongs).permute(1, 0, 2, 3).flatten(1, 2)  # (P, B*nodes, P)
        blocks = summed @ products.transpose(1, 2).flatten(2)  # over q: (P, B*nodes, e*e)
        total = blocks.new_zeros(self.owners, *blocks.shape[1:]).index_add_(0, owner, blocks)
        by_pair = total.view(self.owners, -1, self.owners, width, width)  # (nodes, B, nodes, e, e)
        return by_pair.permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)

    def _scales(self, right: Tensor | None) -> dict[str, Tensor | None]:
        """By source, the scales of its columns by position, (B or 1, T)."""
        stalks = [self.linearized.stalks[source] for source in self.sources]
        if right is None:
            ones = [torch.ones_like(stalk.activation[:1, :, 0]) for stalk in stalks]
            return dict(zip(self.sources, ones, strict=True))
        parts = right.split([stalk.dim for stalk in stalks], dim=1)
        return {
            source: scale_by_position(part, stalk.activation.shape[1])
            for source, part, stalk in zip(self.sources, parts, stalks, strict=True)
        }
