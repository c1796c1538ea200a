"""Writes seen through the unembedding: the logit lens at the answer position.

A write goes through the final norm with the scale that was observed there, and through the unembedding. Biases of the
norm and of the unembedding belong to no node, and a soft cap on the logits comes after the sum over nodes, so neither
is applied. What is left is linear: the logits of a difference are the difference of the logits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eics.models.prompts import token_texts
from eics.transformer.forward import ForwardState
from eics.transformer.norm import NormMap

TOP_TOKENS = 5


class LogitLens:
    """The final norm and the unembedding at the answer positions of a pass."""

    def __init__(self, state: ForwardState) -> None:
        spec, self.model = state.model.transformer, state.model
        assert state.final_read is not None
        rows = torch.arange(len(state.answer), device=state.answer.device)
        at_answer = state.final_read[rows, state.answer].unsqueeze(1)
        self.norm = NormMap.at(spec.final_norm, at_answer, frozen=True)
        self.unembed = spec.unembed.to(state.final_read.dtype)

    def logits(self, write: Tensor) -> Tensor:
        """What a write to the residual stream, (B, d), adds to the logits, (B, V)."""
        return self.unembedded(self.norm.mv(write.to(self.unembed.dtype)[:, None, None]).flatten(1))

    def unembedded(self, normed: Tensor) -> Tensor:
        """The logits, (B, V), of what lies behind the final norm, (B, d)."""
        return normed.to(self.unembed.dtype) @ self.unembed.mT

    def top(self, logits: Tensor, ids: Sequence[int] | None = None) -> list[list[dict[str, Any]]]:
        """For each prompt, the tokens with the largest logits, (B, V), largest first; `ids` if not all are there."""
        top = logits.topk(min(TOP_TOKENS, logits.shape[1]), dim=1)
        rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [self._named(own if ids is None else [ids[place] for place in own], values) for own, values in rows]

    def _named(self, ids: list[int], logits: list[float]) -> list[dict[str, Any]]:
        texts: Sequence[str | None] = token_texts(self.model, ids) or [None] * len(ids)
        columns = zip(texts, ids, logits, strict=True)
        return [{"token": text, "id": id, "logit": short(logit)} for text, id, logit in columns]


def short(number: float) -> float:
    """Six significant digits: records are read by people and by pages."""
    return float(f"{number:.6g}")
