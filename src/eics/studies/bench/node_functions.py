"""The nodes of one prompt as plain functions for autograd to differentiate: what one would write first.

No linear map is derived by hand here. A function takes what is added to the residual stream at each entry of its node,
(entries, T, d), zero being the observed state, and returns what the node writes, (T, d).

Norms are written out because `NormMap` is no function for autograd: torch's fused LayerNorm returns mean and scale
without their derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import CircuitError
from eics.linalg.host_device import map_tensors
from eics.models.spec import MLP, Attention, Norm
from eics.transformer.attention import activations_at
from eics.transformer.forward import ForwardState
from eics.transformer.norm import held_scale

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NodeFunction:
    """A node's function, the edges into each of its entries, and what the node wrote, (T, d).

    `zero` is the observed state, nothing added, (entries, T, d), and `value` the function there.
    """

    function: Function
    entries: tuple[tuple[Edge, ...], ...]
    write: Tensor
    zero: Tensor
    value: Tensor


class PlainCircuit:
    """A circuit on one prompt of a forward pass, as plain functions; `final_norm` read-out, all positions."""

    def __init__(self, state: ForwardState, circuit: Circuit, row: int, linearization: str) -> None:
        if circuit.positions:
            raise CircuitError("The straightforward version needs a circuit without restricted positions.")
        self.state, self.circuit, self.row = state, circuit.carrying(linearization), row
        self.frozen = linearization == "frozen"
        self.length = int(state.lengths[row])
        self.answer = int(state.answer[row])
        self.spec = state.model.transformer
        self.writes = {name: self._write(name) for name in self.circuit.order}
        self.nodes = {name: self._node(Node.parse(name)) for name in self.circuit.inner}

    def macro(self, sources: Tensor) -> Tensor:
        """From changes of the sources' writes to changes of the sinks' writes, both stacked, node after node."""
        shapes = [self.writes[name].shape for name in self.circuit.sources]
        parts = sources.split([shape.numel() for shape in shapes])
        change = {n: p.view(s) for n, p, s in zip(self.circuit.sources, parts, shapes, strict=True)}
        for name, node in self.nodes.items():
            nothing = torch.zeros_like(node.zero[0])
            entering = [sum((change[e.source] for e in edges), nothing) for edges in node.entries]
            change[name] = node.function(torch.stack(entering)) - node.value
        return torch.cat([change[name].flatten() for name in self.circuit.sinks])

    def _node(self, node: Node) -> NodeFunction:
        ports: dict[str | None, list[Edge]] = {}
        for edge in self.circuit.parents[node.name]:
            ports.setdefault(edge.port, []).append(edge)
        read = self._read(node)
        function, zero = self._function(node, read, tuple(ports)), read.new_zeros(len(ports), *read.shape)
        entries = tuple(map(tuple, ports.values()))
        return NodeFunction(function, entries, self.writes[node.name], zero, function(zero))

    def _function(self, node: Node, read: Tensor, ports: tuple[str | None, ...]) -> Function:
        if node.kind is Kind.LOGITS:
            norm = _norm(self.spec.final_norm, read, self.frozen)
            return lambda added: norm(read + added.sum(dim=0))[self.answer : self.answer + 1]
        assert node.layer is not None
        if node.kind is Kind.MLP:
            mlp = _mlp(self.spec.blocks[node.layer].mlp, read, self.frozen)
            return lambda added: mlp(read + added.sum(dim=0))
        assert node.head is not None
        head = self._head(node.layer, node.head, read)

        def entered(added: Tensor) -> Tensor:
            streams = dict.fromkeys("qkv", read)
            for port, change in zip(ports, added, strict=True):
                for name in port or "qkv":
                    streams[name] = streams[name] + change
            return head(streams["q"], streams["k"], streams["v"])

        return entered

    def _head(self, layer: int, head: int, read: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        spec, rotation = self.spec.blocks[layer].attention, self.state.rotations.get(layer)
        if rotation is not None:
            row = min(self.row, rotation[0].shape[0] - 1)
            cos, sin = (part[row : row + 1, : self.length].to(read.dtype) for part in rotation)
            rotation = cos, sin
        post = held_scale(spec.post_norm, self._prompt(self.state.summed[layer])) if spec.post_norm else None
        alone = _one_head(spec, head, read.dtype)
        norm = _norm(alone.norm, read, self.frozen)

        def attended(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            normed = norm(q).unsqueeze(0), norm(k).unsqueeze(0), norm(v).unsqueeze(0)
            activations = activations_at(alone, [0], normed, rotation, False)
            return activations.pattern[0, 0], activations.value[0, 0]

        pattern, _ = attended(read, read, read)

        def write(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.frozen:
                z = pattern @ linear(norm(v), alone.w_v[0], None if alone.b_v is None else alone.b_v[0])
            else:
                weights, value = attended(q, k, v)
                z = weights @ value
            out = linear(z, alone.w_o[0])
            return out if post is None else out * post

        return write

    def _read(self, node: Node) -> Tensor:
        if node.kind is Kind.LOGITS:
            assert self.state.final_read is not None
            return self._prompt(self.state.final_read)
        assert node.layer is not None
        reads = self.state.attention_reads if node.kind is Kind.HEAD else self.state.mlp_reads
        return self._prompt(reads[node.layer])

    def _write(self, name: str) -> Tensor:
        if name == "logits":
            assert self.state.final is not None
            return self.state.final[self.row, self.answer : self.answer + 1]
        return self._prompt(self.state.write(name))

    def _prompt(self, tensor: Tensor) -> Tensor:
        return tensor[self.row, : self.length]


def _one_head(spec: Attention, head: int, dtype: torch.dtype) -> Attention:
    """A layer that has this head alone, in the working dtype: weights are converted here, not in every call."""
    own, group = slice(head, head + 1), slice(spec.group(head), spec.group(head) + 1)
    rows = {"w_q": own, "b_q": own, "w_o": own, "w_k": group, "b_k": group, "w_v": group, "b_v": group}
    cut = {name: getattr(spec, name)[chosen] for name, chosen in rows.items() if getattr(spec, name) is not None}
    alone: Attention = map_tensors(lambda weight: weight.to(dtype), replace(spec, **cut))
    return alone


def _norm(spec: Norm, at: Tensor, frozen: bool) -> Function:
    weight = spec.weight.to(at.dtype)
    bias = None if spec.bias is None else spec.bias.to(at.dtype)

    def centre(x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True) if spec.centred else x

    def scale(x: Tensor) -> Tensor:
        return torch.sqrt(centre(x).square().mean(dim=-1, keepdim=True) + spec.eps)

    held = scale(at)

    def norm(x: Tensor) -> Tensor:
        out = weight * centre(x) / (held if frozen else scale(x))
        return out if bias is None else out + bias

    return norm


def _mlp(spec: MLP, at: Tensor, frozen: bool) -> Function:
    spec = map_tensors(lambda weight: weight.to(at.dtype), spec)
    norm, act = _norm(spec.norm, at, frozen), spec.activation

    def gate(normed: Tensor) -> Tensor:
        assert spec.w_gate is not None
        return act(linear(normed, spec.w_gate, spec.b_gate))

    def up(normed: Tensor) -> Tensor:
        return linear(normed, spec.w_in, spec.b_in)

    if spec.w_gate is None:
        hidden = up(norm(at))
        held = torch.where(hidden == 0, 0.5, act(hidden) / torch.where(hidden == 0, 1.0, hidden))
    else:
        held = gate(norm(at))

    def out(x: Tensor) -> Tensor:
        normed = norm(x)
        if frozen:
            inner = held * up(normed)
        elif spec.w_gate is None:
            inner = act(up(normed))
        else:
            inner = gate(normed) * up(normed)
        return linear(inner, spec.w_out, spec.b_out)

    if spec.post_norm is None:
        return out
    post = _norm(spec.post_norm, out(at), frozen)
    return lambda x: post(out(x))
