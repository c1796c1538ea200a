"""The read-out: the final norm at the answer position, and what lies behind it.

`final_norm`: the d numbers after the norm. `logits`: all of them, mean-centred, since softmax ignores the mean.
`tokens`: the centred logits of a list of token ids.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, scale_by_position
from eics.linalg.memory import chunk_width
from eics.linalg.operators import Dense, LinearOperator, Writer
from eics.linalg.rows import to_columns, to_rows
from eics.linalg.scaled import Scaled
from eics.models.spec import Transformer
from eics.transformer.norm import NormMap


class ReadoutMap(LinearOperator):
    """From the final residual stream, (B, T, d), to the read-out's stalk at the answer position."""

    def __init__(
        self, spec: Transformer, read: Tensor, answer: Tensor, readout: str, tokens: Tensor | None, frozen: bool
    ) -> None:
        self.spec, self.read, self.answer, self.readout = spec, read, answer, readout
        self.tokens, self.frozen = tokens, frozen
        batch, length, width = read.shape
        self.batch, self.cols = batch, length * width
        self.dtype, self.device = read.dtype, read.device
        at_answer = read[torch.arange(batch, device=read.device), answer].unsqueeze(1)  # (B, 1, d)
        self.norm = NormMap.at(spec.final_norm, at_answer, frozen)
        self.slope: Tensor | None = None
        self.function = self.norm.value.squeeze(1)  # (B, d)
        if readout != "final_norm":
            self.unembed = spec.unembed.to(self.dtype)
            self.function = self._logits(self.function)
        self.rows = self.function.shape[1]

    @property
    def reads(self) -> Tensor:
        """The answer positions."""
        return self.answer

    def mv(self, x: Tensor) -> Tensor:
        """The answer's row, norm, unembedding, centring."""
        rows = to_rows(x, self.read).expand(self.batch, -1, -1, -1)
        at_answer = rows[torch.arange(self.batch, device=self.device), :, self.answer]  # (B, k, d)
        return self._image(at_answer).mT

    def after(self, read: Sequence[tuple[Writer, Tensor]]) -> Tensor:
        """W_O at the answer's row only."""
        prompts = torch.arange(self.batch, device=self.device)
        writes = [z[prompts, self.answer] @ writer.weight.mT for writer, z in read]
        return self._image(torch.stack(writes, dim=1)).unsqueeze(2)

    def _image(self, at_answer: Tensor) -> Tensor:
        """From (B, k, d) to (B, k, rows)."""
        out = self.norm.mv(at_answer.unsqueeze(2)).squeeze(2)
        return out if self.readout == "final_norm" else self.select(self._sloped(out @ self.unembed.mT))

    def rmv(self, y: Tensor) -> Tensor:
        """Back into the answer's row; zero elsewhere."""
        back = y.mT
        if self.readout != "final_norm":
            back = self._sloped(self._unselect(back)) @ self.unembed
        back = self.norm.rmv(back.unsqueeze(2)).squeeze(2)  # (B, k, d)
        rows = back.new_zeros(self.batch, y.shape[2], *self.read.shape[1:])
        rows[torch.arange(self.batch, device=self.device), :, self.answer] = back
        return to_columns(rows)

    def at(self, places: Tensor) -> "ReadoutMap":
        """From the answer position alone, which is all that is read."""
        prompts = torch.arange(self.batch, device=self.device)
        read = self.read[prompts, places].unsqueeze(1)
        return ReadoutMap(self.spec, read, torch.zeros_like(places), self.readout, self.tokens, self.frozen)

    def singular_squares(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """Of diag(w) P / s, the final norm where it is held: those of weights alone, scaled; in float64."""
        scales = [self._uniform(left, 1), self._uniform(right, self.read.shape[1])]
        if not self.frozen or self.readout != "final_norm" or scales[0] is None or scales[1] is None:
            return None
        return self._held_squares * (scales[0] * scales[1] / self.norm.scale[:, 0].double()).square()

    @property
    def _held_squares(self) -> Tensor:
        """Squared singular values of diag(w) P, (d,): of weights alone, and kept."""
        norm = self.spec.final_norm

        def make() -> Tensor:
            weight = norm.weight.double()
            if not norm.centred:
                return weight.square()
            found: Tensor = torch.linalg.eigvalsh(torch.diag(weight**2) - torch.outer(weight, weight) / len(weight))
            return found.clamp(min=0)

        return self.spec.kept.get("final norm", [norm.weight], make)

    def _uniform(self, scale: Tensor | None, length: int) -> Tensor | None:
        """Scales by coordinate as one number at the answer position, (B or 1, 1); None where they differ."""
        if scale is None:
            return torch.ones(1, 1, dtype=torch.float64, device=self.device)
        found = scale_by_position(scale, length)
        if found is None or found.shape[1] == 1:
            return None if found is None else found.double()
        rows = found.expand(self.batch, -1)
        return rows.gather(1, self.answer.unsqueeze(1)).double()

    @property
    def gram_side(self) -> int:
        """d, or the tokens asked for."""
        return min(self.rows, self.read.shape[2])

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """K K^T with K the reduced map at the answer position."""
        scales = [self.read.new_ones(1, 1) if scale is None else scale for scale in (left, right)]
        there = Scaled(self.double(), *(scale.double() for scale in scales)).at(self.answer)
        assert there is not None
        matrix = there.reduced().dense()
        return (matrix @ matrix.mT).unsqueeze(1)

    def reduced(self, left: Tensor | None = None) -> LinearOperator:
        """For all logits at one position: d rows instead of V, the root of K^T K."""
        if self.rows <= self.cols or self.read.shape[1] > 1:
            return super().reduced(left)
        squared = torch.zeros(self.batch, self.cols, self.cols, dtype=torch.float64, device=self.device)
        scale = self.left_ones() if left is None else by_coordinate(left, self.rows)
        slope = torch.ones_like(self.unembed[:1, 0]) if self.slope is None else self.slope
        mean = (slope.unsqueeze(-1) * self.unembed).mean(dim=-2, keepdim=True)  # what centring takes off
        width = chunk_width(self.batch * self.cols, torch.float64)
        for some in torch.arange(self.rows, device=self.device).split(width):
            rows = self.unembed[some] if self.slope is None else slope[:, some, None] * self.unembed[some]
            rows = (scale[:, some, None] * (rows - mean)).double()
            squared += rows.mT @ rows
        values, vectors = torch.linalg.eigh(squared)
        root = (values.clamp(min=0).sqrt().unsqueeze(1) * vectors).mT  # root^T root = squared
        return Dense(self.norm.rmv(root.to(self.dtype).expand(self.batch, -1, -1).unsqueeze(2)).squeeze(2))

    def prompt(self, index: int) -> "ReadoutMap":
        """The map for one prompt."""
        rows = slice(index, index + 1)
        return ReadoutMap(self.spec, self.read[rows], self.answer[rows], self.readout, self.tokens, self.frozen)

    def double(self) -> "ReadoutMap":
        """The map at the same state, computed in float64."""
        return ReadoutMap(self.spec, self.read.double(), self.answer, self.readout, self.tokens, self.frozen)

    def select(self, logits: Tensor) -> Tensor:
        """Centred logits, (..., V), of the tokens asked for."""
        centred = logits - logits.mean(dim=-1, keepdim=True)
        return centred if self.tokens is None else centred[..., self.tokens]

    def _unselect(self, back: Tensor) -> Tensor:
        if self.tokens is not None:
            whole = back.new_zeros(*back.shape[:-1], self.unembed.shape[0])
            back = whole.index_add(-1, self.tokens, back)
        return back - back.mean(dim=-1, keepdim=True)

    def _logits(self, normed: Tensor) -> Tensor:
        logits = normed @ self.unembed.mT
        if self.spec.unembed_bias is not None:
            logits = logits + self.spec.unembed_bias.to(self.dtype)
        if self.spec.logit_softcap is not None:
            cap = self.spec.logit_softcap
            capped = cap * torch.tanh(logits / cap)
            slope = 1.0 - (capped / cap).square()
            held = torch.where(logits == 0, 1.0, capped / torch.where(logits == 0, 1.0, logits))
            self.slope, logits = (held if self.frozen else slope), capped
        return self.select(logits)

    def _sloped(self, logits: Tensor) -> Tensor:
        return logits if self.slope is None else logits * self.slope.unsqueeze(1)
