"""Interventions in force during a forward pass: hooks that change what chosen nodes write before anyone reads it.

| node | where its write is changed |
|---|---|
| `input` | what enters block 0 |
| `m3` | what the MLP adds to the residual stream, after its post-norm where there is one |
| `a3.h7` | what its layer's attention adds, after its post-norm; the head's own write is `z_h W_O^h` in held units |

So the other heads of the layer write what they wrote, and what enters the stream is exactly the node's own write plus
the change. Heads' changes are kept with the state, in the precision in which they entered: what was observed of a
head is `z_h W_O^h` and its change.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.errors import ModelError
from eics.models.base import Model
from eics.transformer.attention import head_writes
from eics.transformer.interventions.kinds import Intervention

Rows = Sequence[Sequence[Intervention]]
"""For each prompt of a batch, what is done to it."""


@dataclass
class Applied:
    """What was done: heads' changes by layer and head, (B, T, d); and for each prompt what its record says."""

    heads: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    said: list[list[dict[str, Any]]] = field(default_factory=list)


@contextmanager
def in_force(model: Model, prompts: Sequence[Sequence[int]], rows: Rows | None, applied: Applied) -> Iterator[None]:
    """Changes writes while the model runs on these token lists, and notes in `applied` what it did."""
    handles: list[Any] = []
    try:
        if rows is not None and any(rows):
            applied.said = [[] for _ in prompts]
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
            for one in interventions:
                self.by_node.setdefault(one.node, []).append((row, one))

    def change(self, name: str, write: Tensor) -> Tensor:
        """What is added to a node's write, (B, T, d), one intervention after the other."""
        total = torch.zeros_like(write)
        for row, one in self.by_node[name]:
            tokens = self.prompts[row]
            before = (write[row] + total[row])[: len(tokens)]
            change = one.change(before, tokens)
            total[row, : len(tokens)] += change
            sizes = {"write_norm": _norm(before), "change_norm": _norm(change)}
            self.applied.said[row].append(one.to_record() | sizes)
        return total

    def add(self, name: str, output: Tensor) -> Tensor:
        """The output with the node's change, where the output is the node's write."""
        return output + self.change(name, output.to(self.model.dtype)).to(output.dtype)


def _norm(x: Tensor) -> float | None:
    norm = float(torch.linalg.vector_norm(x.double()))
    return norm if math.isfinite(norm) else None


def _register(work: _Pass, handles: list[Any]) -> None:
    adapter, module = work.model.adapter, work.model.module
    layers = adapter.layers(module)
    heads: dict[int, list[int]] = {}
    for node in map(Node.parse, work.by_node):
        if node.kind is Kind.INPUT:
            handles.append(layers[0].register_forward_pre_hook(_on_input(work, node.name), with_kwargs=True))
        elif node.kind is Kind.MLP:
            assert node.layer is not None
            site = adapter.sites(layers[node.layer]).mlp_write
            handles.append(site.register_forward_hook(_on_output(work, node.name)))
        else:
            assert node.layer is not None
            assert node.head is not None
            heads.setdefault(node.layer, []).append(node.head)
    for layer, some in heads.items():
        sites, hook = adapter.sites(layers[layer]), _OnHeads(work, layer, some)
        if hook.spec.post_norm is not None and sites.attention_post_norm is None:
            raise ModelError(
                "An adapter with a norm after its attention must name it: set attention_post_norm in sites()."
            )
        handles.append(sites.out_proj.register_forward_hook(hook.projected, with_kwargs=True))
        if sites.attention_post_norm is not None:
            handles.append(sites.attention_post_norm.register_forward_hook(hook.normed))


def _on_input(work: _Pass, name: str) -> Callable[..., tuple[Any, Any]]:
    def hook(_: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        if arguments:
            return (work.add(name, arguments[0]), *arguments[1:]), keywords
        return arguments, {**keywords, "hidden_states": work.add(name, keywords["hidden_states"])}

    return hook


def _on_output(work: _Pass, name: str) -> Callable[..., Any]:
    def hook(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (work.add(name, output[0]), *output[1:])
        return work.add(name, output)

    return hook


class _OnHeads:
    """The output projection shows z and its sum; the change is added there, or after the norm that follows."""

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
        kept = self.work.applied.heads.setdefault(self.layer, {})
        for head, write in zip(self.heads, self.writes, strict=True):
            change = self.work.change(f"a{self.layer}.h{head}", write).to(output.dtype)
            kept[head] = change.to(write.dtype)
            output = output + change
        return output
