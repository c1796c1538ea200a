"""The nodes of one prompt as plain functions that autograd differentiates: what one would write first.

No map is derived by hand here. A function takes what is added to the residual stream at each of the node's entries,
(ports, T, d), zero being the observed state, and gives what the node writes, (T, d).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import CircuitError
from eics.models.spec import MLP, Attention, Norm
from eics.transformer.attention import Rotation
from eics.transformer.forward import ForwardState

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NodeFunction:
    """A node's function, and the edges that enter at each of its entries."""

    function: Function
    entries: tuple[tuple[Edge, ...], ...]
    like: Tensor
    write: Tensor

    @property
    def zero(self) -> Tensor:
        """The observed state: nothing added, (ports, T, d)."""
        return self.like.new_zeros(len(self.entries), *self.like.shape)

    @cached_property
    def value(self) -> Tensor:
        """The function there."""
        return self.function(self.zero)


class PlainCircuit:
    """A circuit on one prompt of a forward pass, as plain functions; `final_norm` read-out, all positions."""

    def __init__(self, state: ForwardState, circuit: Circuit, row: int, linearization: str) -> None:
        if circuit.positions:
            raise CircuitError("The straightforward version must have a circuit without restricted positions.")
        self.state, self.circuit, self.row = state, circuit, row
        self.frozen = linearization == "frozen"
        self.length = int(state.lengths[row])
        self.spec = state.model.transformer
        self.writes = {name: self._written(Node.parse(name)) for name in circuit.order}
        found = {name: self._node(Node.parse(name)) for name in circuit.inner}
        self.nodes = {name: node for name, node in found.items() if node.entries}
        for node in self.nodes.values():
            _ = node.value  # now: under a transform it would remember the transform's tensors

    def macro(self, sources: Tensor) -> Tensor:
        """Changes of the sources' writes, stacked, to changes of the sinks', stacked: the nodes one after another."""
        shapes = [self.writes[name].shape for name in self.circuit.sources]
        parts = sources.split([shape.numel() for shape in shapes])
        change = {n: p.view(s) for n, p, s in zip(self.circuit.sources, parts, shapes, strict=True)}
        for name, node in self.nodes.items():
            entering = torch.stack([self._sum(change, edges, node.like) for edges in node.entries])
            change[name] = node.function(entering) - node.value
        still = {name: torch.zeros_like(self.writes[name]) for name in self.circuit.sinks}
        return torch.cat([change.get(name, still[name]).flatten() for name in self.circuit.sinks])

    def _sum(self, change: dict[str, Tensor], edges: tuple[Edge, ...], like: Tensor) -> Tensor:
        return sum((change[e.source] for e in edges if e.source in change), start=torch.zeros_like(like))

    def _node(self, node: Node) -> NodeFunction:
        ports: dict[str | None, list[Edge]] = {}
        for edge in self.circuit.parents[node.name]:
            if not (self.frozen and edge.port in ("q", "k")):
                ports.setdefault(edge.port, []).append(edge)
        read = self._pick(self._read(node))
        return NodeFunction(
            self._function(node, read, tuple(ports)), tuple(map(tuple, ports.values())), read, self.writes[node.name]
        )

    def _function(self, node: Node, read: Tensor, ports: tuple[str | None, ...]) -> Function:
        if node.kind is Kind.LOGITS:
            norm, at = _norm(self.spec.final_norm, read, self.frozen), int(self.state.answer[self.row])
            return lambda added: norm(read + added.sum(dim=0))[at : at + 1]
        assert node.layer is not None
        if node.kind is Kind.MLP:
            mlp = _mlp(self.spec.blocks[node.layer].mlp, read, self.frozen)
            return lambda added: mlp(read + added.sum(dim=0))
        assert node.head is not None
        head = self._head(node.layer, node.head, read)

        def entered(added: Tensor) -> Tensor:
            streams = dict.fromkeys("qkv", read)
            for port, change in zip(ports, added, strict=True):
                for one in port or "qkv":
                    streams[one] = streams[one] + change
            return head(streams["q"], streams["k"], streams["v"])

        return entered

    def _head(self, layer: int, head: int, read: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        spec, rotation = self.spec.blocks[layer].attention, self.state.rotations.get(layer)
        if rotation is not None:
            row = min(self.row, rotation[0].shape[0] - 1)
            cos, sin = (part[row, : self.length].to(read.dtype) for part in rotation)
            rotation = (cos, sin)
        post = None
        if spec.post_norm is not None:
            summed = self._pick(self.state.summed[layer])
            scale = (summed.square().mean(dim=-1, keepdim=True) + spec.post_norm.eps).sqrt()
            post = spec.post_norm.weight.to(read.dtype) / scale
        return _head(spec, head, read, rotation, post, self.frozen)

    def _read(self, node: Node) -> Tensor:
        if node.kind is Kind.LOGITS:
            assert self.state.final_read is not None
            return self.state.final_read
        assert node.layer is not None
        return (self.state.attention_reads if node.kind is Kind.HEAD else self.state.mlp_reads)[node.layer]

    def _written(self, node: Node) -> Tensor:
        state = self.state
        if node.kind is Kind.INPUT:
            assert state.input is not None
            return self._pick(state.input)
        if node.kind is Kind.LOGITS:
            assert state.final is not None
            at = int(state.answer[self.row])
            return state.final[self.row, at : at + 1]
        assert node.layer is not None
        if node.kind is Kind.MLP:
            return self._pick(state.mlp_writes[node.layer])
        assert node.head is not None
        spec = self.spec.blocks[node.layer].attention
        z = self._pick(state.z[node.layer]).unflatten(-1, (spec.heads, -1))[:, node.head]
        out: Tensor = z @ spec.w_o[node.head].to(z.dtype).T
        if spec.post_norm is None:
            return out
        summed = self._pick(state.summed[node.layer])
        scale = (summed.square().mean(dim=-1, keepdim=True) + spec.post_norm.eps).sqrt()
        return out * spec.post_norm.weight.to(z.dtype) / scale

    def _pick(self, tensor: Tensor) -> Tensor:
        return tensor[self.row, : self.length]


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


def _affine(weight: Tensor, bias: Tensor | None, like: Tensor) -> Function:
    matrix = weight.to(like.dtype).T
    shift = None if bias is None else bias.to(like.dtype)
    return lambda x: x @ matrix if shift is None else x @ matrix + shift


def _mlp(spec: MLP, at: Tensor, frozen: bool) -> Function:
    norm, up = _norm(spec.norm, at, frozen), _affine(spec.w_in, spec.b_in, at)
    down = _affine(spec.w_out, spec.b_out, at)
    gate = None if spec.w_gate is None else _affine(spec.w_gate, spec.b_gate, at)
    held_gate = None if gate is None else spec.activation(gate(norm(at)))
    hidden = up(norm(at))
    held_ratio = torch.where(hidden == 0, 0.5, spec.activation(hidden) / torch.where(hidden == 0, 1.0, hidden))

    def inside(x: Tensor) -> Tensor:
        normed = norm(x)
        if gate is None:
            return held_ratio * up(normed) if frozen else spec.activation(up(normed))
        assert held_gate is not None
        return (held_gate if frozen else spec.activation(gate(normed))) * up(normed)

    post = None if spec.post_norm is None else _norm(spec.post_norm, down(inside(at)), frozen)
    return lambda x: down(inside(x)) if post is None else post(down(inside(x)))


def _head(
    spec: Attention, head: int, at: Tensor, rotation: Rotation | None, post: Tensor | None, frozen: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    norm, group = _norm(spec.norm, at, frozen), spec.group(head)
    biases = [None if b is None else b[i] for b, i in ((spec.b_q, head), (spec.b_k, group), (spec.b_v, group))]
    weights = (spec.w_q[head], spec.w_k[group], spec.w_v[group])
    to_q, to_k, to_v = (_affine(weight, bias, at) for weight, bias in zip(weights, biases, strict=True))
    out = _affine(spec.w_o[head], None, at)
    back = torch.arange(len(at), device=at.device).unsqueeze(1) - torch.arange(len(at), device=at.device)
    visible = (back >= 0) if spec.window is None else (back >= 0) & (back < spec.window)

    def turned(x: Tensor, inner: Norm | None) -> Tensor:
        return _rotate(x if inner is None else _norm(inner, x, False)(x), rotation)

    def pattern(x_q: Tensor, x_k: Tensor) -> Tensor:
        query, key = turned(to_q(norm(x_q)), spec.q_norm), turned(to_k(norm(x_k)), spec.k_norm)
        scores = spec.scale * query @ key.T
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        return torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)

    held = pattern(at, at)

    def write(x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Tensor:
        attended = (held if frozen else pattern(x_q, x_k)) @ to_v(norm(x_v))
        return out(attended) if post is None else out(attended) * post

    return write


def _rotate(x: Tensor, rotation: Rotation | None) -> Tensor:
    if rotation is None:
        return x
    cos, sin = rotation
    turned, passed = x[:, : cos.shape[-1]], x[:, cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], dim=-1) * sin, passed], dim=-1)
