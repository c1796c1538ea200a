"""(Circuit, ForwardState) to LinearizedCircuit: one operator for each node and port, shared by all its parents.

Under `frozen` every node is affine in what it reads, `f_v(x) = M_v x + c_v`, and what it reads is the sum of all
upstream writes and of the biases of upstream attention outputs, which no node wrote. So

    b_v = f_v(x_v) - M_v (x_v - biases)

is what the node would write if every upstream node wrote zero.

With the means of a reference set (`means.py`), m_u of what nodes write and x'_v of what they read,

    n_v = b_v + M_v (x'_v - biases)        under `frozen`
    n_v = M_v x'_v                         under `jacobian`, where b_v = 0 and the biases are part of what is read

is what the linearized node would write if every upstream node wrote its mean. Means are over prompts and positions, as
in mean ablation, so that prompts of every length can use them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.circuits.names import heads_by_layer
from eics.linalg.host_device import to_device
from eics.linalg.operators import LinearOperator
from eics.linearized.circuit import Entry, LinearizedCircuit, Stalk
from eics.transformer.attention import AttentionState, by_head
from eics.transformer.fast_sweep.engine import TransformerEngine
from eics.transformer.forward import ForwardState
from eics.transformer.head import HeadMap
from eics.transformer.means import Means, read_name
from eics.transformer.mlp import MLPMap
from eics.transformer.readout import ReadoutMap


@dataclass(frozen=True)
class TransformerRun:
    """A circuit of a model that has run once on a batch of prompts: what `score` linearizes."""

    state: ForwardState
    circuit: Circuit
    readout: str = "final_norm"
    tokens: tuple[int, ...] | None = None
    means: Means | None = None

    def linearize(self, linearization: str) -> LinearizedCircuit:
        """The circuit's activations and maps at the state that the pass left behind."""
        carrying = replace(self, circuit=self.circuit.carrying(linearization))
        linearized = Linearizer(carrying, frozen=linearization == "frozen").linearized(linearization)
        return replace(linearized, edges_left_out=len(self.circuit.edges) - len(carrying.circuit.edges))

    def writes(self) -> dict[str, Tensor]:
        """What each node of the circuit but the read-out wrote, (B, T, d), padding included."""
        at = Linearizer(self, frozen=False)
        return {name: at.written(Node.parse(name)) for name in self.circuit.order if name != Kind.LOGITS}

    def reads(self) -> dict[str, Tensor]:
        """The residual streams that the circuit's nodes read, (B, T, d), by `eics.transformer.means.read_name`."""
        at = Linearizer(self, frozen=False)
        return {read_name(name): at.read(Node.parse(name)) for name in self.circuit.inner}


class Linearizer:
    """Makes the stalks and entries of one circuit at one forward state; whatever several nodes share is made once."""

    def __init__(self, run: TransformerRun, frozen: bool) -> None:
        self.run, self.state, self.frozen = run, run.state, frozen
        self.spec = run.state.model.transformer
        self.attentions: dict[int, AttentionState] = {}
        self._siblings: list[ReferenceType[AttentionState]] = []
        self._head_writes: dict[int, Tensor] = {}
        self._maps: dict[tuple[str, str | None], LinearOperator] = {}
        self.mask = run.state.mask
        self._head_constants: dict[int, Tensor] = {}
        self._positions: dict[int, Tensor] = {}
        self._zeros: dict[torch.Size, Tensor] = {}
        self.heads = heads_by_layer(run.circuit.order)

    def linearized(self, linearization: str) -> LinearizedCircuit:
        """Node by node."""
        circuit = self.run.circuit
        entries = {name: self.entries(Node.parse(name)) for name in circuit.inner}
        stalks = {name: self.stalk(Node.parse(name)) for name in circuit.order}
        # Padding is masked from the start, the circuit's own restrictions with it.
        return LinearizedCircuit(circuit, stalks, entries, linearization, TransformerEngine).restrict("all")

    def entries(self, node: Node) -> tuple[Entry, ...]:
        """One for each port present."""
        by_port: dict[str | None, list[Edge]] = {}
        for edge in self.run.circuit.parents[node.name]:
            by_port.setdefault(edge.port, []).append(edge)
        read = self.read(node)
        return tuple(Entry(self.map(node, port), tuple(edges), read, self.mask) for port, edges in by_port.items())

    def read(self, node: Node) -> Tensor:
        """The residual stream that the node reads, (B, T, d)."""
        if node.kind is Kind.LOGITS:
            assert self.state.final_read is not None
            return self.state.final_read
        reads = self.state.attention_reads if node.kind is Kind.HEAD else self.state.mlp_reads
        assert node.layer is not None
        return reads[node.layer]

    def map(self, node: Node, port: str | None) -> LinearOperator:
        """D f_v(x_v), through one port or all; made once."""
        if (node.name, port) not in self._maps:
            self._maps[node.name, port] = self._map(node, port)
        return self._maps[node.name, port]

    def _map(self, node: Node, port: str | None) -> LinearOperator:
        if node.kind is Kind.HEAD:
            assert node.layer is not None
            return HeadMap(self.attention(node.layer), (self._index(node),), port)
        if node.kind is Kind.MLP:
            assert node.layer is not None
            hidden = self.state.mlp_hidden.get(node.layer)
            return MLPMap(self.spec.blocks[node.layer].mlp, self.read(node), self.frozen, hidden)
        return self.readout_map()

    def readout_map(self) -> ReadoutMap:
        """The read-out at each prompt's answer position."""
        tokens = None
        if self.run.readout == "tokens":
            tokens = to_device(self.run.tokens or (), self.state.answer.device)
        read = self.read(Node.parse("logits"))
        return ReadoutMap(self.spec, read, self.state.answer, self.run.readout, tokens, self.frozen)

    def attention(self, layer: int) -> AttentionState:
        """One layer's attention, computed once for all its heads."""
        if layer not in self.attentions:
            state = self.state
            self.attentions[layer] = AttentionState(
                self.spec.blocks[layer].attention,
                state.attention_reads[layer],
                state.rotations.get(layer),
                state.summed.get(layer),
                self.frozen,
                self.heads[layer],
            )
            self._siblings.append(ref(self.attentions[layer]))
            self.attentions[layer].siblings = self._siblings
        return self.attentions[layer]

    def stalk(self, node: Node) -> Stalk:
        """What the node wrote, and its constant under `frozen`."""
        activation = self.written(node)
        affine = self.frozen and self.run.circuit.parents[node.name]
        constant = self.constant(node) if affine else self.zeros(activation)
        mean, at_mean = self.at_means(node, activation, constant)
        if node.kind is Kind.LOGITS:
            return Stalk(activation, constant, mean=mean, at_mean=at_mean)
        length = activation.shape[1]
        if length not in self._positions:
            self._positions[length] = torch.arange(length, device=activation.device)
        stalk = Stalk(activation, constant, self._positions[length], None, mean, at_mean, self.z(node))
        return stalk if self.mask is None else stalk.masked(self.mask)

    def zeros(self, like: Tensor) -> Tensor:
        """(1, T, d) for (B, T, d), shared."""
        if like.shape not in self._zeros:
            self._zeros[like.shape] = torch.zeros_like(like[:1])
        return self._zeros[like.shape]

    def at_means(self, node: Node, activation: Tensor, constant: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The node's mean write m_v, and n_v if something enters it."""
        means = self.run.means
        if means is None:
            return None, None
        mean = means.writes[node.name].to(activation).expand_as(activation[:1]) if node.name in means.writes else None
        if not self.run.circuit.parents[node.name]:
            return mean, None
        read = self.read(node)
        at = means.reads[read_name(node.name)].to(read) - (self.biases(node) if self.frozen else 0.0)
        carried = self.map(node, None).mv(at.expand_as(read).flatten(1).unsqueeze(2))
        return mean, constant + carried.reshape(activation.shape)

    def written(self, node: Node) -> Tensor:
        """a_v as it was observed, (B, T, d); the read-out's is (B, 1, rows)."""
        state = self.state
        if node.kind is Kind.HEAD:
            assert node.layer is not None
            if node.layer not in self._head_writes:  # those of a layer together
                self._head_writes[node.layer] = state.head_writes(node.layer, self.heads[node.layer])
            return self._head_writes[node.layer][self._index(node)]
        if node.kind is not Kind.LOGITS:
            return state.write(node.name)
        if self.run.readout == "final_norm":
            assert state.final is not None
            rows = torch.arange(len(state.answer), device=state.answer.device)
            return state.final[rows, state.answer].unsqueeze(1)
        assert state.logits is not None
        return self.readout_map().select(state.logits).unsqueeze(1)

    def _index(self, node: Node) -> int:
        """Where a head stands among the circuit's heads of its layer."""
        assert node.layer is not None
        assert node.head is not None
        return self.heads[node.layer].index(node.head)

    def z(self, node: Node) -> Tensor | None:
        """A head's z as it was observed, (B, T, e); None if its write is not `W_O z`, because of a norm or an
        intervention."""
        if node.kind is not Kind.HEAD:
            return None
        assert node.layer is not None
        assert node.head is not None
        spec = self.spec.blocks[node.layer].attention
        change = self.state.applied.heads.get(node.layer, {}).get(node.head)
        if spec.post_norm is not None or (change is not None and bool(change.any())):
            return None
        return by_head(self.state.z[node.layer], spec.heads)[node.head]

    def constant(self, node: Node) -> Tensor:
        """b_v under `frozen`, where only values carry anything into a head."""
        if node.kind is Kind.HEAD:
            assert node.layer is not None
            return self.head_constants(node.layer)[self._index(node)]
        operator = self.map(node, None)
        if isinstance(operator, MLPMap):
            return operator.constant(self.biases(node), self.upstream_biases(node))
        assert isinstance(operator, ReadoutMap)
        value = operator.function.unsqueeze(1)
        read = self.read(node) - self.biases(node)
        return value - operator.mv(read.flatten(1).unsqueeze(2)).reshape(value.shape)

    def head_constants(self, layer: int) -> Tensor:
        """b_v of the circuit's heads of a layer, (H, B or 1, T, d).

        A head whose pattern is frozen averages `W_V N x + c` with `c = W_V bias + b_V`, and its rows sum to 1: so
        `b_v = W_O c + (A / s) W_O W_V diag(w) P biases`, in which all but `A / s` depends on weights alone.
        """
        if layer not in self._head_constants:
            attention, node = self.attention(layer), Node.parse(f"a{layer}.h{self.heads[layer][0]}")
            fixed, through = attention.constants(self.biases(node), self.upstream_biases(node))
            seen = attention.activations.pattern @ (1.0 / attention.norm.scale)  # (H, B, T, 1)
            constants = torch.addcmul(fixed, seen, through)
            self._head_constants[layer] = constants if attention.post is None else constants * attention.post
        return self._head_constants[layer]

    def biases(self, node: Node) -> Tensor:
        """Sum of the attention output biases upstream of the node, (d,)."""
        return self._bias_sums[len(self._upstream(node))]

    def upstream_biases(self, node: Node) -> list[Tensor]:
        """The attention output biases upstream of the node, as far as there are any."""
        return [bias for bias in self._upstream(node) if bias is not None]

    def _upstream(self, node: Node) -> list[Tensor | None]:
        """The attention output biases upstream of the node, one for each layer."""
        layers = len(self.spec.blocks) if node.layer is None else node.layer
        if node.kind is Kind.MLP and not self.spec.blocks[layers].parallel:
            layers += 1
        return [block.attention.b_o for block in self.spec.blocks[:layers]]

    @cached_property
    def _bias_sums(self) -> Tensor:
        """Sums over the first 0, 1, ... layers, (layers + 1, d)."""
        zero = torch.zeros(self.spec.width, dtype=self.state.model.dtype, device=self.state.model.device)
        biases = [block.attention.b_o for block in self.spec.blocks]
        rows = [zero, *(zero if bias is None else bias.to(zero.dtype) for bias in biases)]
        return torch.stack(rows).cumsum(dim=0)
