"""Samples of a batch: one row for each prompt (`at="answer"`), or for each of its positions from the second one on
(`at="all"`).

The first token is apart: heads that have nothing to look at rest on it, and what nodes write there is far from what
they write anywhere else and all but the same in every text. It would fill the bases and say nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import PromptError
from eics.transformer.explained import Observed, observe
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import TransformerRun
from eics.transformer.stretches import Stretches, stretches

FIRST = 1
"""The first position that is judged if all are."""


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


def sample(run: TransformerRun, layout: Layout, at: str, first: int = FIRST) -> Samples:
    """The rows of a pass; of every position from the `first` one on if all are judged."""
    observed, state = observe(run, at), run.state
    if at == "all":
        return _rows(observed, state, layout, _judged_positions(state, 0, first))
    writes = _stacked(observed.writes, layout.nodes, layout.width)
    explained = _stacked(observed.explained, layout.judged, layout.width)
    prompts = torch.arange(len(state.answer), device=state.answer.device)
    return Samples(writes, explained, torch.ones_like(explained[..., 0]), prompts)


def sample_stretches(run: TransformerRun, layout: Layout) -> Iterator[tuple[int, Tensor, Samples]]:
    """The rows of every position, one stretch of them after another, within the memory bound: where the stretch starts,
    which of its positions have a row, (B, P), and the rows."""
    for start, state, observed in stretches(run):
        kept = _judged_positions(state, start)
        yield start, kept, _rows(observed, state, layout, kept)


def sample_next(whole: Stretches, state: ForwardState, layout: Layout) -> tuple[Tensor, Samples]:
    """The rows of the next positions of a text that grows, and which of them have one."""
    start = whole.length
    observed = whole.advance(state)
    kept = _judged_positions(state, start)
    return kept, _rows(observed, state, layout, kept)


def check_second_token(at: str, length: int, answer: int | None = None, first: int = FIRST) -> None:
    """Refuses a prompt of one token, or one whose answer is its first, where all positions but the first are judged."""
    if at != "all":
        return
    if length <= first:
        raise PromptError("a prompt must have a second token: the first one is apart if all positions are judged")
    if answer is not None and answer % length < first:
        raise PromptError("the answer position must not be the first token, which is apart if all positions are judged")


def _judged_positions(state: ForwardState, start: int, first: int = FIRST) -> Tensor:
    """Which positions of a stretch have a row, (B, P)."""
    positions = torch.arange(start, start + state.longest, device=state.lengths.device)
    return state.valid & (positions >= first)


def _rows(observed: Observed, state: ForwardState, layout: Layout, judged: Tensor) -> Samples:
    """A row for each position of a stretch that is judged, prompt by prompt."""
    spread = _spread(observed, state.answer, state.longest)
    kept = judged.flatten()
    writes = _stacked(spread.writes, layout.nodes, layout.width)[:, kept]
    explained = _stacked(spread.explained, layout.judged, layout.width)[:, kept]
    counts = torch.ones_like(explained[..., 0])
    if Kind.LOGITS in layout.judged:
        positions = torch.arange(state.longest, device=kept.device)
        at_answer = (positions == state.answer.unsqueeze(1)).flatten()[kept]
        counts[layout.judged.index(Kind.LOGITS)] = at_answer.to(counts.dtype)
    prompts = torch.arange(len(state.answer), device=kept.device).unsqueeze(1).expand_as(judged)
    return Samples(writes, explained, counts, prompts[judged])


def _stacked(tensors: dict[str, Tensor], names: Sequence[str], width: int) -> Tensor:
    """(B, P, n) each, padded to the width, as (names, B*P, width)."""
    rows = [tensors[name].flatten(0, 1) for name in names]
    return torch.stack([row if row.shape[1] == width else pad(row, (0, width - row.shape[1])) for row in rows])


def _spread(observed: Observed, answer: Tensor, length: int) -> Observed:
    """The read-out's single row at the answer position, if that is in the stretch, and zeros elsewhere."""
    prompts = torch.arange(len(answer), device=answer.device)
    inside = ((answer >= 0) & (answer < length)).unsqueeze(1)

    def at_answer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if Kind.LOGITS not in tensors:
            return tensors
        own = tensors[Kind.LOGITS]
        whole = own.new_zeros(own.shape[0], length, own.shape[2])
        whole[prompts, answer.clamp(0, length - 1)] = own.squeeze(1) * inside
        return tensors | {Kind.LOGITS.value: whole}

    return Observed(at_answer(observed.writes), at_answer(observed.explained))
