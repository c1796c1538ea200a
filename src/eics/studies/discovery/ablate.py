"""Runs a circuit by itself: every edge outside it carries the ablated write of its source instead of the live one.

With r the residual stream made of ablated writes, a reader v reads `r + sum_u (a_u - a_u')` over its parents u in the
circuit, where a_u is what u wrote in this very run. Only the circuit's nodes are computed, each from its own function;
queries, keys and values of a head may read different sums. With every edge in the circuit this is the model itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.reference import Writes
from eics.transformer.attention import by_head, heads_sum, hold
from eics.transformer.forward import ForwardState
from eics.transformer.mlp import mlp_value
from eics.transformer.norm import NormMap
from eics.transformer.readout import ReadoutMap


def circuit_logits(clean: ForwardState, ablated: Writes, graph: FullGraph, mask: Tensor) -> Tensor:
    """Centred logits at the answer position, (B, V), with all edges but those of `mask` (writers, readers) ablated."""
    return _CircuitRun(clean, ablated, graph, mask).logits()


class _CircuitRun:
    def __init__(self, clean: ForwardState, ablated: Writes, graph: FullGraph, mask: Tensor) -> None:
        assert clean.input is not None
        self.clean, self.ablated, self.graph = clean, ablated, graph
        self.spec = clean.model.transformer
        self.shape = clean.input.shape  # B, T, d
        self.mask = mask.to(clean.input.device, clean.input.dtype)
        writing = mask.any(dim=1).nonzero().flatten().tolist()
        self.place = {row: place for place, row in enumerate(writing)}  # writers that anyone reads live
        self.rows = torch.tensor(writing, dtype=torch.long, device=clean.input.device)
        self.entered = set(mask.any(dim=0).nonzero().flatten().tolist())
        self.changes = clean.input.new_zeros(len(writing), *self.shape)  # a_u - a_u', zero until u is computed

    def logits(self) -> Tensor:
        """Layer by layer."""
        stream = self.ablated.input.expand(self.shape)
        assert self.clean.input is not None
        self._change(0, self.clean.input - self.ablated.input)
        for layer, block in enumerate(self.spec.blocks):
            self._heads(layer, stream)
            spec = block.attention
            out = heads_sum(spec, self.ablated.z[layer])
            if spec.post_norm is not None:
                out = NormMap.at(spec.post_norm, out, False).value
            self._mlp(layer, stream if block.parallel else stream + out)
            stream = stream + out + self.ablated.mlps[layer]
        read = stream + self._live([len(self.graph.readers) - 1])[0]
        return ReadoutMap(self.spec, read, self.clean.answer, "logits", None, False).function

    def _live(self, columns: Sequence[int]) -> Tensor:
        """sum_u (a_u - a_u') over each reader's parents in the circuit, (R, B, T, d)."""
        chosen = self.mask[:, list(columns)][self.rows]  # (places, R)
        live: Tensor = torch.tensordot(chosen.mT, self.changes, dims=1)
        return live

    def _change(self, row: int, change: Tensor) -> None:
        if row in self.place:
            self.changes[self.place[row]] = change

    def _heads(self, layer: int, stream: Tensor) -> None:
        spec, first = self.spec.blocks[layer].attention, 1 + layer * (self.graph.heads + 1)
        columns = {
            head: [self.graph.columns[f"a{layer}.h{head}", port] for port in ("q", "k", "v")]
            for head in range(self.graph.heads)
            if first + head in self.place
        }
        live = [head for head, ports in columns.items() if self.entered & set(ports)]
        sources = [head for head in columns if head not in live]
        ablated = self.ablated.z[layer]
        z = ablated.expand(*self.shape[:2], -1).clone()
        split = by_head(z, spec.heads)
        if sources:  # nodes without parents in the circuit are what they were
            split[sources] = by_head(self.clean.z[layer], spec.heads)[sources]
        batch, length, width = self.shape
        chunk = chunk_width(batch * length * (6 * width + 2 * length), z.dtype)
        for start in range(0, len(live), chunk):
            heads = live[start : start + chunk]
            split[heads] = self._z(layer, heads, [columns[head] for head in heads], stream)
        if columns:
            heads = list(columns)
            change = Writes(self.clean.model, stream, {layer: z}).heads_less(self.ablated, layer, heads)
            for head, one in zip(heads, change, strict=True):
                self._change(first + head, one)

    def _z(self, layer: int, heads: list[int], columns: list[list[int]], stream: Tensor) -> Tensor:
        spec = self.spec.blocks[layer].attention
        q, k, v = (
            NormMap.at(spec.norm, stream + self._live([ports[which] for ports in columns]), False).value
            for which in range(3)
        )
        held = hold(spec, heads, (q, k, v), self.clean.rotations.get(layer), False)
        return held.pattern @ held.value

    def _mlp(self, layer: int, stream: Tensor) -> None:
        row, column = (layer + 1) * (self.graph.heads + 1), self.graph.columns[f"m{layer}", None]
        if row not in self.place:
            return
        if column in self.entered:
            write = mlp_value(self.spec.blocks[layer].mlp, stream + self._live([column])[0])
        else:
            write = self.clean.mlp_writes[layer]
        self._change(row, write - self.ablated.mlps[layer])
