"""Interventions during a forward pass: hooks that change what chosen nodes write before any other node reads it.

| node | where its write is changed |
|---|---|
| `input` | at the entrance of block 0 |
| `m3` | at the MLP's output, after its post-norm if it has one |
| `a3.h7` | at its layer's attention output, after the post-norm; the head's write is `z_h W_O^h`, the scale held |

So the other heads of the layer are untouched, and what enters the residual stream is the node's own write plus exactly
the change. Changes of heads are kept with the forward state, in the precision in which they entered: the observed write
of a head is `z_h W_O^h` plus its change.

What an MLP reads is changed at the entrance of its norm. Nothing else sees that: the residual stream goes past it, and
the heads of its layer have a norm of their own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.errors import ModelError
from eics.models.base import Model
from eics.transformer.attention import head_writes
from eics.transformer.interventions.kinds import Intervention, PatchRead

Rows = Sequence[Sequence[Intervention]]
"""The interventions on each prompt of a batch."""
Written = Callable[[str], Tensor]
"""What a node upstream of the running one has written in this pass, (B, T, d)."""


@dataclass
class Applied:
    """What a pass did: changes of heads by layer and head, (B, T, d), and the record entries of each prompt."""

    heads: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    records: list[list[dict[str, Any]]] = field(default_factory=list)


@contextmanager
def in_force(
    model: Model, prompts: Sequence[Sequence[int]], rows: Rows | None, applied: Applied, written: Written
) -> Iterator[None]:
    """Changes writes and reads while the model runs on these token lists, and notes in `applied` what it did.

    `written` must know what the nodes of `parents_of(rows)` wrote as soon as they have.
    """
    handles: list[Any] = []
    try:
        if rows is not None and any(rows):
            applied.records = [[] for _ in prompts]
            _register(_Pass(model, prompts, rows, applied, written), handles)
        yield
    finally:
        for handle in handles:
            handle.remove()


def parents_of(rows: Rows | None) -> list[str]:
    """The nodes whose writes in this pass the interventions need."""
    reads = (i for row in rows or () for i in row if isinstance(i, PatchRead))
    return list(dict.fromkeys(parent for intervention in reads for parent in intervention.parents or ()))


class _Pass:
    def __init__(
        self, model: Model, prompts: Sequence[Sequence[int]], rows: Rows, applied: Applied, written: Written
    ) -> None:
        self.model, self.prompts, self.applied, self.written = model, prompts, applied, written
        self.writes: dict[str, list[tuple[int, Intervention]]] = {}
        self.reads: dict[str, list[tuple[int, PatchRead]]] = {}
        for row, interventions in enumerate(rows):
            for intervention in interventions:
                if isinstance(intervention, PatchRead):
                    self.reads.setdefault(intervention.node, []).append((row, intervention))
                else:
                    self.writes.setdefault(intervention.node, []).append((row, intervention))

    def change(self, name: str, write: Tensor) -> Tensor:
        """The sum of all changes to a node's write, (B, T, d); each intervention sees those before it."""
        total = torch.zeros_like(write)
        for row, intervention in self.writes[name]:
            before = self._before(row, write, total)
            self._apply(row, intervention, before, before, total)
        return total

    def change_read(self, name: str, read: Tensor) -> Tensor:
        """The same for what a node reads: a patch moves the part that its parents did not write."""
        total = torch.zeros_like(read)
        by_parents: dict[tuple[str, ...], Tensor] = {}
        for row, intervention in self.reads[name]:
            assert intervention.parents is not None, "bind() takes them from the circuit"
            parents = tuple(intervention.parents)
            if parents not in by_parents:
                by_parents[parents] = sum((self.written(parent) for parent in parents), torch.zeros_like(read))
            before = self._before(row, read, total)
            self._apply(row, intervention, before, before - by_parents[parents][row, : len(before)], total)
        return total

    def _before(self, row: int, value: Tensor, total: Tensor) -> Tensor:
        """What the next intervention on this prompt finds, (T, d), without padding."""
        return (value[row] + total[row])[: len(self.prompts[row])]

    def _apply(self, row: int, intervention: Intervention, before: Tensor, moved: Tensor, total: Tensor) -> None:
        """Adds an intervention's change of `moved`, which is `before` or a part of it, and notes both sizes."""
        tokens = self.prompts[row]
        change = intervention.change(moved, tokens)
        total[row, : len(tokens)] += change
        sizes = {f"{intervention.changes}_norm": _norm(before), "change_norm": _norm(change)}
        self.applied.records[row].append(intervention.to_record() | sizes)

    def add(self, name: str, output: Tensor) -> Tensor:
        """An output that is the node's write, with its change added."""
        return output + self.change(name, output.to(self.model.dtype)).to(output.dtype)

    def on_read(self, name: str, _: Any, arguments: Any) -> tuple[Any, ...]:
        read = arguments[0]
        return (read + self.change_read(name, read.to(self.model.dtype)).to(read.dtype), *arguments[1:])

    def on_input(self, name: str, _: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        if arguments:
            return (self.add(name, arguments[0]), *arguments[1:]), keywords
        return arguments, {**keywords, "hidden_states": self.add(name, keywords["hidden_states"])}

    def on_output(self, name: str, _: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self.add(name, output[0]), *output[1:])
        return self.add(name, output)


def _norm(x: Tensor) -> float | None:
    norm = float(torch.linalg.vector_norm(x.double()))
    return norm if math.isfinite(norm) else None


def _register(work: _Pass, handles: list[Any]) -> None:
    adapter, module = work.model.adapter, work.model.module
    layers = adapter.layers(module)
    heads: dict[int, list[int]] = {}
    for name in work.reads:
        layer = Node.parse(name).layer
        assert layer is not None
        handles.append(adapter.sites(layers[layer]).mlp_norm.register_forward_pre_hook(partial(work.on_read, name)))
    for node in map(Node.parse, work.writes):
        if node.kind is Kind.INPUT:
            handles.append(layers[0].register_forward_pre_hook(partial(work.on_input, node.name), with_kwargs=True))
        elif node.kind is Kind.MLP:
            assert node.layer is not None
            site = adapter.sites(layers[node.layer]).mlp_write
            handles.append(site.register_forward_hook(partial(work.on_output, node.name)))
        else:
            assert node.layer is not None
            assert node.head is not None
            heads.setdefault(node.layer, []).append(node.head)
    for layer, chosen in heads.items():
        sites, hook = adapter.sites(layers[layer]), _OnHeads(work, layer, chosen)
        if hook.spec.post_norm is not None and sites.attention_post_norm is None:
            raise ModelError(
                "An adapter with a norm after its attention must name it: set attention_post_norm in sites()."
            )
        handles.append(sites.out_proj.register_forward_hook(hook.projected, with_kwargs=True))
        if sites.attention_post_norm is not None:
            handles.append(sites.attention_post_norm.register_forward_hook(hook.normed))


class _OnHeads:
    """Reads z at the output projection; adds the change there, or after the post-norm if there is one."""

    def __init__(self, work: _Pass, layer: int, heads: list[int]) -> None:
        self.work, self.layer, self.heads = work, layer, heads
        self.spec = work.model.transformer.blocks[layer].attention
        self.writes: Tensor | None = None

    def projected(self, _: Any, arguments: Any, keywords: Any, output: Tensor) -> Tensor | None:
        z = arguments[0] if arguments else next(iter(keywords.values()))
        dtype = self.work.model.dtype
        summed = output.to(dtype) if self.spec.post_norm is not None else None
        self.writes = head_writes(self.spec, z.to(dtype), self.heads, summed)
        return self.add(output) if self.spec.post_norm is None else None

    def normed(self, _: Any, __: Any, output: Tensor) -> Tensor:
        return self.add(output)

    def add(self, output: Tensor) -> Tensor:
        assert self.writes is not None
        changes = self.work.applied.heads.setdefault(self.layer, {})
        for head, write in zip(self.heads, self.writes, strict=True):
            change = self.work.change(f"a{self.layer}.h{head}", write).to(output.dtype)
            changes[head] = change.to(write.dtype)
            output = output + change
        return output
