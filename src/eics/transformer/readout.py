"""The read-out: the final norm at the answer position, and what lies behind it.

`final_norm`: the d numbers after the norm. `logits`: all of them, mean-centred, since softmax ignores the mean.
`tokens`: the centred logits of a list of token ids.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.operators import LinearOperator, Writer
from eics.transformer.blocks import to_columns, to_rows
from eics.transformer.norm import NormMap
from eics.transformer.spec import Transformer


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
