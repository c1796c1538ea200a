"""What a circuit explains of its nodes' writes at every position, one stretch of a text after another.

A text comes whole and is cut into stretches, so that no T x T pattern is ever held, or token by token from a model that
keeps its keys and values (`cached.py`): the numbers are the same. What later positions need of earlier ones is kept by
head, e numbers a position: its key, and the part of its value that the circuit explains,

    v'_s = W_V diag(w) P sum_u a_u(s) / s_s          summed over the head's parents u

so that `e_v(t) = b_v(t) + W_O sum_s A_ts v'_s` costs one row of a pattern. MLPs read one position (`explained.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.circuits.names import heads_by_layer
from eics.linalg.blocks import project
from eics.linalg.host_device import to_device
from eics.linalg.memory import chunk_width
from eics.transformer.attention import AttentionState
from eics.transformer.explained import Observed, edges_between
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import Linearizer, TransformerRun
from eics.transformer.mlp import MLPMap
from eics.transformer.pattern_rows import Keys, keys, pattern_rows, queries


@dataclass(frozen=True)
class _Seen:
    """What the heads of a layer keep of earlier positions: keys, v', and 1 / s, (H, B, T, e) and (B, T, 1)."""

    keys: Keys
    values: Tensor
    inverse: Tensor

    def and_then(self, other: "_Seen") -> "_Seen":
        values = torch.cat([self.values, other.values], dim=2)
        return _Seen(self.keys.and_then(other.keys), values, torch.cat([self.inverse, other.inverse], dim=1))


class Stretches:
    """A circuit on texts that come in stretches: `advance` takes the next one."""

    def __init__(self, circuit: Circuit, readout: str, tokens: tuple[int, ...] | None = None) -> None:
        self.circuit, self.readout, self.tokens = circuit, readout, tokens
        self.length = 0
        self.heads = heads_by_layer(circuit.inner)
        self._seen: dict[int, _Seen] = {}
        self.sources = [name for name in circuit.order if name != Kind.LOGITS]
        self.places = {name: place for place, name in enumerate(self.sources)}
        self.writers = heads_by_layer(circuit.order)
        self._entered: dict[tuple[str, ...], Tensor] = {}
        self._current: _Stretch | None = None

    def advance(self, state: ForwardState) -> Observed:
        """`a_v` and `e_v` at the positions of the next stretch, (B, P, d); the read-out's, (B, 1, rows), is that of the
        answer position if this lies in the stretch."""
        here = self._current if self._current is not None and self._current.state is state else _Stretch(self, state)
        self._current = None
        observed = here.observed()
        self.length += state.longest
        return observed

    def follow(self, state: ForwardState) -> Callable[[int], None]:
        """Begins the next stretch while the pass that fills `state` still runs: what it returns is called with every
        layer that is finished, whose weights are then still near the processor. `advance` does the rest."""
        self._current = _Stretch(self, state)
        return self._current.layer_done

    def remember(self, layer: int, new: _Seen) -> _Seen:
        """What the heads of a layer see from the new positions: earlier ones and the new."""
        known = self._seen.get(layer)
        self._seen[layer] = new if known is None else known.and_then(new)
        return self._seen[layer]

    def entered(self, targets: Sequence[str], like: Tensor) -> Tensor:
        """How many edges carry each source into each of these nodes, (targets, sources)."""
        key = tuple(targets)
        if key not in self._entered:
            edges = edges_between(self.circuit, self.sources, targets)
            self._entered[key] = to_device(edges, like.device, like.dtype)
        return self._entered[key]


class _Stretch:
    """The circuit at the positions of one stretch, layer by layer in the order of computation."""

    def __init__(self, whole: Stretches, state: ForwardState) -> None:
        self.whole, self.state, self.circuit = whole, state, whole.circuit
        self.start = whole.length
        self.writes: dict[str, Tensor] = {}
        self.explained: dict[str, Tensor] = {}
        self._done = 0  # layers

    @cached_property
    def at(self) -> Linearizer:
        """The pass; made once the input is there, whose precision decides."""
        whole = self.whole
        return Linearizer(TransformerRun(self.state, self.circuit, whole.readout, whole.tokens), frozen=True)

    def observed(self) -> Observed:
        for layer in range(self._done, len(self.at.spec.blocks)):
            self.layer_done(layer)
        if Kind.LOGITS in self.circuit.inner:
            (read,) = self._read([Kind.LOGITS])
            self.writes[Kind.LOGITS], self.explained[Kind.LOGITS] = self._read_out(read)
        ordered = {name: self.writes[name] for name in self.circuit.order}
        return Observed(ordered, {name: self.explained[name] for name in self.circuit.inner})

    def layer_done(self, layer: int) -> None:
        """What the nodes of a layer wrote, and what is explained of it; every earlier layer is done."""
        if layer != self._done:  # a model that runs its layers in another order is taken as a whole afterwards
            return
        self._done += 1
        if layer == 0 and Kind.INPUT in self.whole.places:
            self._note(Kind.INPUT.value, self.state.write(Kind.INPUT))
        if layer in self.whole.writers:
            writers = self.whole.writers[layer]
            for head, write in zip(writers, self.state.head_writes(layer, writers), strict=True):
                self._note(f"a{layer}.h{head}", write)
        if layer in self.whole.heads:
            self._explain_heads(layer, [f"a{layer}.h{head}" for head in self.whole.heads[layer]])
        if (mlp := f"m{layer}") in self.whole.places:
            if self.circuit.parents[mlp]:
                self._explain_mlp(mlp)
            self._note(mlp, self.state.write(mlp))

    @cached_property
    def _stacked(self) -> Tensor:
        """What every source wrote, (sources, B, P, d); zero until it has."""
        shape = (len(self.state.lengths), self.state.longest, self.at.spec.width)
        return torch.zeros(
            len(self.whole.sources), *shape, dtype=self.state.model.dtype, device=self.state.model.device
        )

    def _note(self, name: str, write: Tensor) -> None:
        """What a node wrote, for those that read it."""
        self.writes[name] = write
        self._stacked[self.whole.places[name]] = self._carried(name, write)

    def _read(self, names: Sequence[str]) -> Tensor:
        """`sum_u a_u(t)` over the parents u of each node, (nodes, B, P, d)."""
        stacked = self._stacked
        return (self.whole.entered(names, stacked) @ stacked.flatten(1)).view(-1, *stacked.shape[1:])

    def _kept(self, name: str, like: Tensor) -> Tensor:
        """1 at the positions to which the circuit restricts a node, (P, 1)."""
        here = torch.arange(self.start, self.start + self.state.longest, device=like.device)
        return torch.isin(here, to_device(self.circuit.positions[name], like.device)).to(like.dtype).unsqueeze(1)

    def _carried(self, name: str, carried: Tensor) -> Tensor:
        return carried * self._kept(name, carried) if name in self.circuit.positions else carried

    def _explain_mlp(self, name: str) -> None:
        node, (read,) = Node.parse(name), self._read([name])
        operator = self.at.map(node, None)
        assert isinstance(operator, MLPMap)
        carried = self._carried(name, operator.image(read.unsqueeze(1)).squeeze(1))
        self.explained[name] = carried + self.at.constant(node) if self._has_constant(node) else carried

    def _explain_heads(self, layer: int, names: Sequence[str]) -> None:
        attention = self._attention(layer)
        seen = self.whole.remember(layer, _newly_seen(attention, self._read(names)))
        here = torch.arange(self.start, self.start + self.state.longest, device=self.state.lengths.device)
        point = attention.norm.point / attention.norm.scale
        rows = pattern_rows(attention.spec, queries(attention, point, attention.rotation), seen.keys, here[None])
        carried = attention.write(rows @ seen.values)
        self.explained |= {name: self._carried(name, part) for name, part in zip(names, carried, strict=True)}
        if not self._has_constant(Node.parse(names[0])):
            return
        fixed, through = attention.constants(*self._biases(layer))
        constants = torch.addcmul(fixed, rows @ seen.inverse, through)
        constants = constants if attention.post is None else constants * attention.post
        for name, constant in zip(names, constants, strict=True):
            self.explained[name] = self.explained[name] + constant

    def _has_constant(self, node: Node) -> bool:
        """Whether `b_v` can be anything but zero: many models have no bias anywhere, and a token takes no time then."""
        assert node.layer is not None
        block = self.at.spec.blocks[node.layer]
        mlp, attention = block.mlp, block.attention
        own = [attention.norm.bias, attention.b_v]
        if node.kind is Kind.MLP:
            own = [mlp.norm.bias, mlp.b_in, mlp.b_out, None if mlp.post_norm is None else mlp.post_norm.bias]
        return any(bias is not None for bias in own) or bool(self.at.upstream_biases(node))

    def _attention(self, layer: int) -> AttentionState:
        state, spec = self.state, self.at.spec.blocks[layer].attention
        read, rotation = state.attention_reads[layer], state.rotations.get(layer)
        return AttentionState(spec, read, rotation, state.summed.get(layer), frozen=True, heads=self.whole.heads[layer])

    def _biases(self, layer: int) -> tuple[Tensor, list[Tensor]]:
        node = Node.parse(f"a{layer}.h{self.whole.heads[layer][0]}")
        return self.at.biases(node), self.at.upstream_biases(node)

    def _read_out(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """The read-out's write and what is explained of it, (B, 1, rows), at the answer position."""
        state, node = self.state, Node.parse(Kind.LOGITS)
        answer = state.answer.clamp(0, state.longest - 1)
        bare = ForwardState(
            state.model, state.lengths, answer, state.longest, state.padded
        )  # nothing but what is read out
        within = replace(bare, final_read=state.final_read, final=state.final, logits=state.logits)
        at = Linearizer(replace(self.at.run, state=within.at_answer()), frozen=True)
        rows = torch.arange(len(read), device=read.device)
        carried = at.map(node, None).mv(read[rows, within.answer].unsqueeze(2)).mT
        return at.written(node), carried + at.constant(node)


def _newly_seen(attention: AttentionState, total: Tensor) -> _Seen:
    """What later positions will need of these, from what the heads' parents wrote, (H, B, P, d)."""
    norm = attention.norm
    values = project(total / norm.scale, attention.weights_in(attention.heads, "v").mT)
    return _Seen(keys(attention), values, 1.0 / norm.scale)


def stretches(run: TransformerRun) -> Iterator[tuple[int, ForwardState, Observed]]:
    """A whole pass in stretches that keep within the memory bound: where each starts, its part of the pass, and what is
    observed there."""
    state, whole = run.state, Stretches(run.circuit, run.readout, run.tokens)
    heads = max([len(heads) for heads in whole.heads.values()], default=1)
    by_position = max(heads * state.longest, 4 * len(run.circuit.order) * state.model.transformer.width)
    width = chunk_width(len(state.lengths) * by_position, state.model.dtype)
    for start in range(0, state.longest, width):
        part = state.stretch(start, start + width)
        yield start, part, whole.advance(part)
