"""The read-out: the final norm at the answer position, and what lies behind it.

`final_norm`: the d numbers after the norm. `logits`: all of them, mean-centred, since softmax ignores the mean.
`tokens`: the centred logits of a list of token ids.
"""

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, to_block, to_rows
from eics.linalg.memory import chunk_width
from eics.linalg.operators import Dense, LinearOperator
from eics.linalg.scaled import rows_scaled
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

    def mv(self, x: Tensor) -> Tensor:
        rows = to_rows(x, self.read.shape[2]).expand(self.batch, -1, -1, -1)
        at_answer = rows[torch.arange(self.batch, device=self.device), :, self.answer]  # (B, k, d)
        return self.image(at_answer).mT

    def image(self, at_answer: Tensor) -> Tensor:
        """From what is read at the answer position, (B, k, d), to (B, k, rows)."""
        out = self.norm.mv(at_answer.unsqueeze(2)).squeeze(2)
        return out if self.readout == "final_norm" else self.select(self._sloped(out @ self.unembed.mT))

    def rmv(self, y: Tensor) -> Tensor:
        back = y.mT
        if self.readout != "final_norm":
            back = self._sloped(self._unselect(back)) @ self.unembed
        back = self.norm.rmv(back.unsqueeze(2)).squeeze(2)  # (B, k, d)
        rows = back.new_zeros(self.batch, y.shape[2], *self.read.shape[1:])
        rows[torch.arange(self.batch, device=self.device), :, self.answer] = back
        return to_block(rows)

    def at_answer(self) -> "ReadoutMap":
        """From the answer position, which is all that is read, as a prompt of one token."""
        prompts = torch.arange(self.batch, device=self.device)
        read = self.read[prompts, self.answer].unsqueeze(1)
        return ReadoutMap(self.spec, read, torch.zeros_like(self.answer), self.readout, self.tokens, self.frozen)

    def reduced(self, left: Tensor | None) -> LinearOperator:
        """A map from one position with the J^T J of diag(left) J, and no more rows than columns.

        For all logits: d rows instead of the vocabulary, the square root of K^T K.
        """
        assert self.read.shape[1] == 1
        if self.rows <= self.cols:
            return self if left is None else rows_scaled(self, left)
        squared = torch.zeros(self.batch, self.cols, self.cols, dtype=torch.float64, device=self.device)
        scale = self.read.new_ones(1, self.rows) if left is None else by_coordinate(left, self.rows)
        slope = torch.ones_like(self.unembed[:1, 0]) if self.slope is None else self.slope
        mean = (slope.unsqueeze(-1) * self.unembed).mean(dim=-2, keepdim=True)  # what centring takes off
        width = chunk_width(self.batch * self.cols, torch.float64)
        for chunk in torch.arange(self.rows, device=self.device).split(width):
            rows = self.unembed[chunk] if self.slope is None else slope[:, chunk, None] * self.unembed[chunk]
            rows = (scale[:, chunk, None] * (rows - mean)).double()
            squared += rows.mT @ rows
        values, vectors = torch.linalg.eigh(squared)
        root = (values.clamp(min=0).sqrt().unsqueeze(1) * vectors).mT  # root^T root = squared
        return Dense(self.norm.rmv(root.to(self.dtype).expand(self.batch, -1, -1).unsqueeze(2)).squeeze(2))

    def prompt(self, index: int) -> "ReadoutMap":
        rows = slice(index, index + 1)
        return ReadoutMap(self.spec, self.read[rows], self.answer[rows], self.readout, self.tokens, self.frozen)

    def double(self) -> "ReadoutMap":
        """The map at the same state, computed in float64."""
        return ReadoutMap(self.spec, self.read.double(), self.answer, self.readout, self.tokens, self.frozen)

    def select(self, logits: Tensor) -> Tensor:
        """Centred logits, (..., V), of the chosen tokens."""
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
