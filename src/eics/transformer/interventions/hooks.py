"""Interventions during a forward pass: hooks that change what chosen nodes write before any other node reads it.

| node | where its write is changed |
|---|---|
| `input` | at the entrance of block 0 |
| `m3` | at the MLP's output, after its post-norm if it has one |
| `a3.h7` | at its layer's attention output, after the post-norm; the head's write is `z_h W_O^h`, the scale held |

So the other heads of the layer are untouched, and what enters the residual stream is the node's own write plus exactly
the change. Changes of heads are kept with the forward state, in the precision in which they entered: the observed write
of a head is `z_h W_O^h` plus its change.
"""

import math
from collections.abc import Iterator, Sequence
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
from eics.transformer.interventions.kinds import Intervention

Rows = Sequence[Sequence[Intervention]]
"""The interventions on each prompt of a batch."""


@dataclass
class Applied:
    """What a pass did: changes of heads by layer and head, (B, T, d), and the record entries of each prompt."""

    heads: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    records: list[list[dict[str, Any]]] = field(default_factory=list)


@contextmanager
def in_force(model: Model, prompts: Sequence[Sequence[int]], rows: Rows | None, applied: Applied) -> Iterator[None]:
    """Changes writes while the model runs on these token lists, and notes in `applied` what it did."""
    handles: list[Any] = []
    try:
        if rows is not None and any(rows):
            applied.records = [[] for _ in prompts]
            _register(_Pass(model, prompts, rows, applied), handles)
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Pass:
    def __init__(self, model: Model, prompts: Sequence[Sequence[int]], rows: Rows, applied: Applied) -> None:
        self.model, self.prompts, self.applied = model, prompts, applied
        self.by_node: dict[str, list[tuple[int, Intervention]]] = {}
        for row, interventions in enumerate(rows):
            for intervention in interventions:
                self.by_node.setdefault(intervention.node, []).append((row, intervention))

    def change(self, name: str, write: Tensor) -> Tensor:
        """The sum of all changes to a node's write, (B, T, d); each intervention sees those before it."""
        total = torch.zeros_like(write)
        for row, intervention in self.by_node[name]:
            tokens = self.prompts[row]
            before = (write[row] + total[row])[: len(tokens)]
            change = intervention.change(before, tokens)
            total[row, : len(tokens)] += change
            sizes = {"write_norm": _norm(before), "change_norm": _norm(change)}
            self.applied.records[row].append(intervention.to_record() | sizes)
        return total

    def add(self, name: str, output: Tensor) -> Tensor:
        """An output that is the node's write, with its change added."""
        return output + self.change(name, output.to(self.model.dtype)).to(output.dtype)

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
    for node in map(Node.parse, work.by_node):
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
