"""Runs a circuit alone: every edge outside it carries the ablated write of its source instead of the live one.

With r the residual stream made of ablated writes, a reader v reads `r + sum_u (a_u - a_u')` over its parents u in the
circuit, where a_u is what u writes in this run and a_u' its ablated write. Only the circuit's nodes are computed, each
by its own function; queries, keys and values of a head may read different sums. With every edge in the circuit, this
is the full model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.reference import Writes, head_differences
from eics.transformer.attention import activations_at, by_head, heads_sum
from eics.transformer.forward import ForwardState
from eics.transformer.mlp import mlp_value
from eics.transformer.norm import NormMap
from eics.transformer.readout import ReadoutMap


def circuit_logits(clean: ForwardState, ablated: Writes, graph: FullGraph, mask: Tensor) -> Tensor:
    """Centred logits at the answer position, (B, V), with every edge outside `mask` (writers, readers) ablated."""
    return _CircuitRun(clean, ablated, graph, mask).logits()


class _CircuitRun:
    def __init__(self, clean: ForwardState, ablated: Writes, graph: FullGraph, mask: Tensor) -> None:
        assert clean.input is not None
        self.clean, self.ablated, self.graph = clean, ablated, graph
        self.spec = clean.model.transformer
        self.shape = clean.input.shape  # B, T, d
        self.mask = mask.to(clean.input.device, clean.input.dtype)
        read = mask.any(dim=1).nonzero().flatten().tolist()
        self.slots = {row: slot for slot, row in enumerate(read)}  # only writers that the circuit reads
        self.rows = torch.tensor(read, dtype=torch.long, device=clean.input.device)
        self.entered = set(mask.any(dim=0).nonzero().flatten().tolist())
        self.changes = clean.input.new_zeros(len(read), *self.shape)  # a_u - a_u', zero until u is computed

    def logits(self) -> Tensor:
        assert self.clean.input is not None
        stream = self.ablated.input.expand(self.shape)
        self._record("input", self.clean.input - self.ablated.input)
        for layer, block in enumerate(self.spec.blocks):
            self._heads(layer, stream)
            out = heads_sum(block.attention, self.ablated.z[layer])
            if block.attention.post_norm is not None:
                out = NormMap.at(block.attention.post_norm, out, False).value
            self._mlp(layer, stream if block.parallel else stream + out)
            stream = stream + out + self.ablated.mlps[layer]
        read = stream + self._live([self.graph.columns["logits", None]])[0]
        return ReadoutMap(self.spec, read, self.clean.answer, "logits", None, False).function

    def _live(self, columns: Sequence[int]) -> Tensor:
        """sum_u (a_u - a_u') over the parents of each reader in the circuit, (R, B, T, d)."""
        chosen = self.mask[:, list(columns)][self.rows]  # (slots, R)
        live: Tensor = torch.tensordot(chosen.mT, self.changes, dims=1)
        return live

    def _read(self, name: str) -> bool:
        """Whether any edge of the circuit leaves this node."""
        return self.graph.rows[name] in self.slots

    def _record(self, name: str, change: Tensor) -> None:
        if self._read(name):
            self.changes[self.slots[self.graph.rows[name]]] = change

    def _heads(self, layer: int, stream: Tensor) -> None:
        spec = self.spec.blocks[layer].attention
        read = [head for head in range(spec.heads) if self._read(f"a{layer}.h{head}")]
        if not read:
            return
        columns = {head: [self.graph.columns[f"a{layer}.h{head}", port] for port in "qkv"] for head in read}
        live = [head for head in read if self.entered.intersection(columns[head])]
        sources = [head for head in read if head not in live]  # without parents: as in the clean pass
        z = self.ablated.z[layer].expand(*self.shape[:2], -1).clone()
        split = by_head(z, spec.heads)
        if sources:
            split[sources] = by_head(self.clean.z[layer], spec.heads)[sources]
        batch, length, width = self.shape
        chunk = chunk_width(batch * length * (6 * width + 2 * length), z.dtype)
        for start in range(0, len(live), chunk):
            heads = live[start : start + chunk]
            split[heads] = self._z(layer, heads, [columns[head] for head in heads], stream)
        changes = head_differences(spec, z, self.ablated.z[layer], read)
        for head, change in zip(read, changes, strict=True):
            self._record(f"a{layer}.h{head}", change)

    def _z(self, layer: int, heads: list[int], columns: list[list[int]], stream: Tensor) -> Tensor:
        spec = self.spec.blocks[layer].attention
        q, k, v = (
            NormMap.at(spec.norm, stream + self._live(by_port), False).value for by_port in zip(*columns, strict=True)
        )
        held = activations_at(spec, heads, (q, k, v), self.clean.rotations.get(layer), False)
        return held.pattern @ held.value

    def _mlp(self, layer: int, stream: Tensor) -> None:
        name = f"m{layer}"
        if not self._read(name):
            return
        column = self.graph.columns[name, None]
        if column in self.entered:
            write = mlp_value(self.spec.blocks[layer].mlp, stream + self._live([column])[0])
        else:
            write = self.clean.mlp_writes[layer]
        self._record(name, write - self.ablated.mlps[layer])
