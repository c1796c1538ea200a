"""Samples of a batch: one row for each prompt (`at="answer"`) or for each of its positions (`at="all"`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from eics.circuits.graph import Circuit, Kind, Node
from eics.transformer.explained import Observed, observe
from eics.transformer.linearize import TransformerRun


@dataclass(frozen=True)
class Layout:
    """The circuit's nodes as rows of tensors.

    Attributes:
        nodes: all, in the order of computation.
        judged: those with parents; `places` are theirs among `nodes`.
        before: for each judged node, whether each node was computed before it, so that it may be its context.
        width: of the residual stream; a shorter stalk is padded with zeros, which change nothing.
    """

    nodes: tuple[str, ...]
    judged: tuple[str, ...]
    before: tuple[tuple[bool, ...], ...]
    width: int

    @classmethod
    def of(cls, circuit: Circuit, width: int, *, parallel: bool) -> "Layout":
        """The layout of a circuit; in a `parallel` model the MLP does not read the heads of its layer."""

        def computed_before(first: Node, second: Node) -> bool:
            if first.rank is None or second.rank is None or first.rank >= second.rank:
                return False
            return not (parallel and second.kind is Kind.MLP and first.layer == second.layer)

        nodes = [Node.parse(name) for name in circuit.order]
        before = tuple(tuple(computed_before(u, Node.parse(v)) for u in nodes) for v in circuit.inner)
        return cls(circuit.order, circuit.inner, before, width)

    @property
    def places(self) -> list[int]:
        """Where the judged nodes stand among all nodes."""
        return [self.nodes.index(name) for name in self.judged]


@dataclass(frozen=True)
class Samples:
    """Rows of a batch.

    Attributes:
        writes: a_v of all nodes, (nodes, R, d).
        explained: e_v of the judged nodes, (judged, R, d).
        counts: 1 where a node is judged in this row, (judged, R); the read-out is judged at the answer position alone.
        prompt: which prompt of the batch a row belongs to, (R,).
    """

    writes: Tensor
    explained: Tensor
    counts: Tensor
    prompt: Tensor

    def rows(self, kept: Tensor | slice) -> "Samples":
        """Some of the rows."""
        return Samples(self.writes[:, kept], self.explained[:, kept], self.counts[:, kept], self.prompt[kept])

    def of_prompt(self, number: int) -> "Samples":
        """The same rows, all of one prompt of this number."""
        return replace(self, prompt=torch.full_like(self.prompt, number))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Samples":
        """The samples elsewhere, in another precision."""
        parts = (self.writes, self.explained, self.counts)
        writes, explained, counts = (part.to(device=device, dtype=dtype) for part in parts)
        return Samples(writes, explained, counts, self.prompt.to(device))

    @staticmethod
    def cat(samples: "Sequence[Samples]") -> "Samples":
        """One after another."""
        writes, explained, counts = (
            torch.cat([getattr(one, name) for one in samples], dim=1) for name in ("writes", "explained", "counts")
        )
        return Samples(writes, explained, counts, torch.cat([one.prompt for one in samples]))


def sample(run: TransformerRun, layout: Layout, at: str) -> Samples:
    """The rows of a pass."""
    observed, state = observe(run, at), run.state
    prompts = torch.arange(len(state.answer), device=state.answer.device)
    if at == "answer":
        writes = _stacked(observed.writes, layout.nodes, layout.width)
        explained = _stacked(observed.explained, layout.judged, layout.width)
        return Samples(writes, explained, torch.ones_like(explained[..., 0]), prompts)
    spread = _spread(observed, state.answer, state.longest)
    writes = _stacked(spread.writes, layout.nodes, layout.width)
    explained = _stacked(spread.explained, layout.judged, layout.width)
    counts = torch.ones_like(explained[..., 0]).view(len(layout.judged), len(prompts), -1)
    if Kind.LOGITS in layout.judged:
        positions = torch.arange(state.longest, device=prompts.device)
        counts[layout.judged.index(Kind.LOGITS)] = (positions == state.answer.unsqueeze(1)).to(counts.dtype)
    valid = state.valid
    rows = prompts.unsqueeze(1).expand_as(valid)[valid]
    kept = valid.flatten()
    return Samples(writes[:, kept], explained[:, kept], counts.flatten(1)[:, kept], rows)


def _stacked(tensors: dict[str, Tensor], names: Sequence[str], width: int) -> Tensor:
    """(B, P, n) each, padded to the width, as (names, B*P, width)."""
    rows = [tensors[name].flatten(0, 1) for name in names]
    return torch.stack([row if row.shape[1] == width else pad(row, (0, width - row.shape[1])) for row in rows])


def _spread(observed: Observed, answer: Tensor, length: int) -> Observed:
    """The read-out's single row at the answer position, zeros elsewhere."""
    prompts = torch.arange(len(answer), device=answer.device)

    def at_answer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if Kind.LOGITS not in tensors:
            return tensors
        own = tensors[Kind.LOGITS]
        whole = own.new_zeros(own.shape[0], length, own.shape[2])
        whole[prompts, answer] = own.squeeze(1)
        return tensors | {Kind.LOGITS.value: whole}

    return Observed(at_answer(observed.writes), at_answer(observed.explained))
