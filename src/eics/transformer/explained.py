"""What a circuit explains of its nodes' writes under `frozen`: `e_v = b_v + sum_u rho_{u->v} a_u` beside `a_v`.

At a single position t an MLP needs one row of what it reads and a head one row of its pattern, so at the answer
position this costs a small part of a forward pass:

    MLP    e_v(t) = b_v(t) + M_v(t) sum_u a_u(t)
    head   e_v(t) = b_v(t) + W_O W_V diag(w) P sum_s (A_ts / s_s) sum_u a_u(s)

A head that is a parent enters the sum over s as its z, e numbers a position, and is written out afterwards.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.circuits.graph import HELD_PORTS, Circuit, Kind, Node
from eics.circuits.names import heads_by_layer
from eics.linalg.blocks import project
from eics.linalg.host_device import keep_alive, to_device
from eics.transformer.attention import AttentionState, by_head, pick, place_index
from eics.transformer.linearize import Linearizer, TransformerRun
from eics.transformer.pattern_rows import answer_pattern

AT = ("answer", "all")
"""Where nodes are judged: at the answer position, or at every position."""


@dataclass(frozen=True)
class Observed:
    """What nodes wrote, and what the circuit explains of it, at the positions judged.

    Attributes:
        writes: a_v of every node of the circuit, (B, P, d) with P = 1 or T; the read-out's is (B, 1, rows).
        explained: e_v of every node with parents, of the same shapes.
    """

    writes: dict[str, Tensor]
    explained: dict[str, Tensor]


def observe(run: TransformerRun, at: str = "answer") -> Observed:
    """`a_v` and `e_v` of the given circuit's nodes; a head that only `<q>` and `<k>` edges enter is explained by its
    constant alone."""
    if at == "answer" and not run.circuit.positions:
        return _AtAnswer(run).observed()
    observed = _at_all(run)
    return observed if at == "all" else _rows_of(observed, run.state.answer)


def _at_all(run: TransformerRun) -> Observed:
    """At every position, by the maps of the linearized circuit."""
    linearizer, linearized = Linearizer(run, frozen=True), run.linearize("frozen")
    carried = dict(linearized.engine().carry({n: s.flat.unsqueeze(2) for n, s in linearized.stalks.items()}))
    writes, explained = {}, {}
    for name in run.circuit.order:
        write = writes[name] = linearizer.written(Node.parse(name))
        if run.circuit.parents[name]:
            constant = linearizer.constant(Node.parse(name)).expand_as(write)
            explained[name] = constant + carried[name].reshape(write.shape) if name in carried else constant
    return Observed(writes, explained)


def _rows_of(observed: Observed, answer: Tensor) -> Observed:
    """The answer position of each prompt."""
    prompts = torch.arange(len(answer), device=answer.device)

    def pick_row(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t if n == Kind.LOGITS else t[prompts, answer].unsqueeze(1) for n, t in tensors.items()}

    return Observed(pick_row(observed.writes), pick_row(observed.explained))


class _AtAnswer:
    """The circuit at the answer position: maps of MLPs and read-out there, patterns of heads from there."""

    def __init__(self, run: TransformerRun) -> None:
        self.run, self.circuit, self.state = run, run.circuit, run.state
        self.here = Linearizer(replace(run, state=run.state.at_answer()), frozen=True)
        self.heads = heads_by_layer(self.circuit.inner)

    def observed(self) -> Observed:
        writes = {name: self.here.written(Node.parse(name)) for name in self.circuit.order}
        explained = self._heads() | self._pointwise(writes)
        return Observed(writes, {name: explained[name] for name in self.circuit.inner})

    def _pointwise(self, writes: dict[str, Tensor]) -> dict[str, Tensor]:
        """e_v of the nodes that read one position."""
        nodes = [name for name in self.circuit.inner if Node.parse(name).kind is not Kind.HEAD]
        if not nodes:
            return {}
        sources = [name for name in self.circuit.order if name != Kind.LOGITS]
        present = edges_between(self.circuit, sources, nodes)
        stacked = torch.stack([writes[name].squeeze(1) for name in sources])  # (sources, B, d)
        chosen = to_device(present, stacked.device, stacked.dtype)
        sums = (chosen @ stacked.flatten(1)).view(len(nodes), *stacked.shape[1:])
        explained = {}
        for name, total in zip(nodes, sums, strict=True):
            node = Node.parse(name)
            carried = self.here.map(node, None).mv(total.unsqueeze(2)).mT  # (B, 1, rows)
            explained[name] = carried + self.here.constant(node)
        return explained

    def _heads(self) -> dict[str, Tensor]:
        """e_v of the heads, layer by layer after what they read has been averaged for all of them."""
        names = [f"a{layer}.h{head}" for layer, heads in self.heads.items() for head in heads]
        if not names:
            return {}
        attentions = {layer: self._attention(layer) for layer in self.heads}
        rows = torch.cat(  # (heads, B, T)
            [answer_pattern(a, self.state.answer) / a.norm.scale.squeeze(2) for a in attentions.values()]
        )
        read = dict(zip(names, self._averages(names, rows), strict=True))
        seen = dict(zip(names, rows.sum(dim=2), strict=True))
        explained = {}
        for layer, heads in self.heads.items():
            own = [f"a{layer}.h{head}" for head in heads]
            average, weight = (torch.stack([part[name] for name in own]) for part in (read, seen))
            for name, value in zip(own, self._through(layer, heads, average, weight), strict=True):
                explained[name] = value
        return explained

    def _attention(self, layer: int) -> AttentionState:
        state, spec = self.state, self.here.spec.blocks[layer].attention
        read, rotation = state.attention_reads[layer], state.rotations.get(layer)
        return AttentionState(spec, read, rotation, None, frozen=True, heads=self.heads[layer])

    def _averages(self, names: Sequence[str], rows: Tensor) -> Tensor:
        """`sum_s rows_s sum_u a_u(s)` over the parents u of each head, (heads, B, d), for rows (heads, B, T)."""
        total = rows.new_zeros(*rows.shape[:2], self.here.spec.width)
        for sources, part, weight in self._sources():
            entered = edges_between(self.circuit, sources, names)
            targets = [place for place, row in enumerate(entered) if any(row)]
            if not targets:
                continue
            mask = to_device([entered[place] for place in targets], rows.device, rows.dtype)
            averaged = pick(rows, targets).transpose(0, 1) @ part.flatten(2)  # (B, targets, sources * n)
            averaged = averaged.unflatten(2, (len(sources), -1)) * mask.unsqueeze(2)
            through = averaged.sum(dim=2) if weight is None else averaged.flatten(2) @ weight
            total.index_add_(0, keep_alive(place_index(tuple(targets), rows.device)), through.transpose(0, 1))
        return total

    def _sources(self) -> Iterator[tuple[list[str], Tensor, Tensor | None]]:
        """Nodes that heads may read: names, (B, T, nodes, n), and what takes all their n to the residual stream."""
        by_layer = heads_by_layer(self.circuit.order)
        for name in self.circuit.order:
            if Node.parse(name).kind in (Kind.INPUT, Kind.MLP):
                yield [name], self.state.write(name).unsqueeze(2), None
        for layer, heads in by_layer.items():
            names = [f"a{layer}.h{head}" for head in heads]
            spec = self.here.spec.blocks[layer].attention
            if spec.post_norm is not None or layer in self.state.applied.heads:  # then a write is not `W_O z`
                for name, write in zip(names, self.state.head_writes(layer, heads), strict=True):
                    yield [name], write.unsqueeze(2), None
                continue
            z = pick(by_head(self.state.z[layer], spec.heads), heads)  # (H, B, T, e)
            weight = pick(spec.w_o, heads).to(z.dtype).mT.flatten(0, 1)  # (H*e, d)
            yield names, z.permute(1, 2, 0, 3), weight

    def _through(self, layer: int, heads: Sequence[int], read: Tensor, seen: Tensor) -> Tensor:
        """e_v of heads of a layer, (H, B, 1, d), from the averages (H, B, d) that their values are made of."""
        node = Node.parse(f"a{layer}.h{heads[0]}")
        spec, summed = self.here.spec.blocks[layer].attention, self.here.state.summed.get(layer)
        attention = AttentionState(
            spec, self.here.state.attention_reads[layer], None, summed, frozen=True, heads=list(heads)
        )
        z = project(read.unsqueeze(2), attention.weights_in(attention.heads, "v").mT)
        fixed, through = attention.constants(self.here.biases(node), self.here.upstream_biases(node))
        constant = torch.addcmul(fixed, seen[:, :, None, None], through)
        return attention.write(z) + (constant if attention.post is None else constant * attention.post)


def edges_between(circuit: Circuit, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
    """How many edges carry each source into each target while attention patterns are held: a head may be entered both
    plainly and through `<v>`."""
    carrying = Counter((e.source, e.target) for e in circuit.edges if e.port not in HELD_PORTS)
    return [[float(carrying[u, v]) for u in sources] for v in targets]
