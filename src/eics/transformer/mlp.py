"""MLPs: position by position, `W_out diag(r) W_in N`, and gated ones with the gate's differential beside it.

| | plain | gated: hidden `act(g) * u` |
|---|---|---|
| `jacobian` | r = act'(h) | `act'(g) u dg + act(g) du` |
| `frozen` | r = act(h) / h | `act(g) du`: the activated gate is frozen |
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from eics.linalg.blocks import mix, mix_rounded, to_block, to_rows
from eics.linalg.host_device import to_host
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator
from eics.linalg.structure import with_cached_blocks
from eics.models.spec import MLP
from eics.transformer.norm import NormMap, derivative


class MLPMap(LinearOperator):
    """An MLP's linear map from the residual stream to its write, at the observed state; also its own value there.

    With `caches_blocks` it makes its matrices once, (B, T, d, d), and multiplies with them. What is known of it in
    closed form: `closed_forms/mlp.py`.
    """

    caches_blocks = False
    _cached_blocks: Tensor

    def __init__(self, spec: MLP, read: Tensor, frozen: bool, hidden: Tensor | None = None) -> None:
        """`hidden` is what the activation took (of a gated MLP, the gate), if a pass has recorded it."""
        self.spec, self.read, self.frozen = spec, read, frozen
        batch, length, width = read.shape
        self.batch, self.rows, self.cols = batch, length * width, length * width
        self.dtype, self.device = read.dtype, read.device
        self.length = length
        self.norm = NormMap.at(spec.norm, read, frozen)
        self.w_in, self.w_out = spec.w_in.to(self.dtype), spec.w_out.to(self.dtype)
        self.w_gate = None if spec.w_gate is None else spec.w_gate.to(self.dtype)
        self.up: Tensor | None
        self.gate: Tensor | None
        if self.w_gate is None:
            self.up, self.gate = self._up if hidden is None else hidden, None
        else:
            self.up = None if frozen else self._up  # nothing more is needed if the gate is frozen
            self.gate = _affine(self.norm.value, self.w_gate, spec.b_gate) if hidden is None else hidden
        if self.gate is None:
            assert self.up is not None
            self.by_up, self.by_gate = self._ratio(self.up), None
        else:
            self.by_up = spec.activation(self.gate)
            self.by_gate = None if self.up is None else derivative(spec.activation, self.gate) * self.up
        self.post = None if spec.post_norm is None else NormMap.at(spec.post_norm, self._out, frozen)

    @property
    def _up(self) -> Tensor:
        return _affine(self.norm.value, self.w_in, self.spec.b_in)

    @cached_property
    def _out(self) -> Tensor:
        """What is written before a post-norm."""
        up = self._up if self.up is None else self.up
        hidden = self.spec.activation(up) if self.w_gate is None else self.by_up * up
        return _affine(hidden, self.w_out, self.spec.b_out)

    @cached_property
    def function(self) -> Tensor:
        """What the MLP's own function writes at the observed state, (B, T, d)."""
        return self._out if self.post is None else self.post.value

    def constant(self, biases: Tensor, made_of: Sequence[Tensor]) -> Tensor:
        """f(x) - M (x - biases) under `frozen`, (B or 1, T, d): what is left when every upstream node writes zero.

        The hidden layer reads `W_in N x` and constants beside it, so only those go through W_out; a model without
        biases has none. `made_of` are the weights that `biases` is the sum of.
        """
        assert self.frozen
        spec = self.spec

        def make() -> Tensor:
            through = self.norm.fold(self.w_in) @ biases
            return torch.stack([self.norm.rest(self.w_in, spec.b_in), through])

        own = (spec.w_in, spec.b_in, spec.norm.weight, spec.norm.bias)
        weights = [*(weight for weight in own if weight is not None), *made_of]
        rest, through = fixed = spec.cache.get(("constant", self.dtype), weights, make)
        has_constant = spec.cache.get(("has a constant", self.dtype), weights, lambda: fixed.any().cpu())
        out = torch.zeros_like(self.read[:1])
        if to_host(has_constant):
            out = mix(self.by_up * torch.addcdiv(rest, through, self.norm.scale), self.w_out.mT)
        if self.spec.b_out is not None:
            out = out + self.spec.b_out.to(self.dtype)
        if self.post is None:
            return out
        out = self.post.mv(out.unsqueeze(1)).squeeze(1)
        return out if self.post.spec.bias is None else out + self.post.spec.bias.to(self.dtype)

    def along(self, weight: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """W diag(w) c at the norm's point c, from `value = W norm(x) + bias`, which is known: no product."""
        return (value - self.norm.rest(weight, bias)) * self.norm.scale

    def mv(self, x: Tensor) -> Tensor:
        if self.caches_blocks:
            rows = self.norm.core(to_rows(x, self.read.shape[2])).transpose(1, 2)  # (B, T, k, d)
            return to_block((rows @ self._cached_blocks.mT).transpose(1, 2))
        return to_block(self.image(to_rows(x, self.read.shape[2])))

    def image(self, rows: Tensor) -> Tensor:
        """`mv` of vectors as rows, (B, k, T, d), from the weights."""
        normed = self.norm.mv(rows)
        hidden = mix_rounded(normed, self.w_in.mT, self.spec.w_in.mT) * self.by_up.unsqueeze(1)
        if self.w_gate is not None and self.spec.w_gate is not None and self.by_gate is not None:
            gated = mix_rounded(normed, self.w_gate.mT, self.spec.w_gate.mT)
            hidden = torch.addcmul(hidden, gated, self.by_gate.unsqueeze(1))
        out = mix_rounded(hidden, self.w_out.mT, self.spec.w_out.mT)
        return out if self.post is None else self.post.mv(out)

    def rmv(self, y: Tensor) -> Tensor:
        back = to_rows(y, self.read.shape[2])
        if self.caches_blocks:
            return to_block(self.norm.core((back.transpose(1, 2) @ self._cached_blocks).transpose(1, 2)))
        hidden = mix_rounded(back if self.post is None else self.post.rmv(back), self.w_out, self.spec.w_out)
        total = mix_rounded(hidden * self.by_up.unsqueeze(1), self.w_in, self.spec.w_in)
        if self.w_gate is not None and self.spec.w_gate is not None and self.by_gate is not None:
            total = total + mix_rounded(hidden * self.by_gate.unsqueeze(1), self.w_gate, self.spec.w_gate)
        return to_block(self.norm.rmv(total))

    def prompt(self, index: int) -> "MLPMap":
        return MLPMap(self.spec, self.read[index : index + 1], self.frozen)

    def double(self) -> "MLPMap":
        """The map at the same state, computed in float64."""
        return MLPMap(self.spec, self.read.double(), self.frozen)

    def dense(self) -> Tensor:
        """At a single position from the weights, else by products."""
        return self.blocks().squeeze(1) if self.length == 1 else super().dense()

    def blocks(self) -> Tensor:
        """The matrices at each position, (B, T, d, d): W_out (diag(r) W_in + diag(s) W_gate) between the norms."""
        if self.caches_blocks:
            return self.norm.core(self._cached_blocks.transpose(1, 2)).transpose(1, 2)
        blocks = self.norm.rmv(self._middle(self.w_in, self.w_gate).transpose(1, 2))  # rows as vectors: (B, d, T, d)
        if self.post is None:
            return blocks.transpose(1, 2)
        return self.post.mv(blocks.transpose(1, 3)).permute(0, 2, 3, 1)

    def folded_blocks(self) -> Tensor:
        """W_out (diag(r) W_in + diag(s) W_gate) diag(w) P at each position, (B, T, d, d)."""
        if self.caches_blocks:
            return self._cached_blocks
        return self._middle(self.norm.fold(self.w_in), None if self.w_gate is None else self.norm.fold(self.w_gate))

    def restrict_to(self, positions: Tensor) -> "MLPMap":
        """The map at one position of each prompt, (B,)."""
        prompts = torch.arange(self.batch, device=self.device)
        return self._picked(lambda tensor: tensor[prompts, positions].unsqueeze(1))

    def with_cached_blocks(self) -> "MLPMap":
        """The same map for many products. With a post-norm, itself."""
        if self.post is not None or self.caches_blocks:
            return self
        cached = self._picked(lambda tensor: tensor)
        cached.caches_blocks, cached._cached_blocks = True, self.folded_blocks()
        return cached

    def _picked(self, pick: Callable[[Tensor], Tensor]) -> "MLPMap":
        """The map at some of the positions: what is known at all of them is picked, not computed anew."""
        one = MLPMap.__new__(MLPMap)
        one.spec, one.frozen, one.read = self.spec, self.frozen, pick(self.read)
        one.batch, one.length, width = one.read.shape
        one.rows = one.cols = one.length * width
        one.dtype, one.device = self.dtype, self.device
        one.w_in, one.w_out, one.w_gate = self.w_in, self.w_out, self.w_gate
        one.norm, one.post = self.norm.map_tensors(pick), None if self.post is None else self.post.map_tensors(pick)
        one.by_up, more = pick(self.by_up), (self.up, self.gate, self.by_gate)
        one.up, one.gate, one.by_gate = (None if tensor is None else pick(tensor) for tensor in more)
        if self.caches_blocks:
            one.caches_blocks, one._cached_blocks = True, pick(self._cached_blocks)
        return one

    def _middle(self, w_in: Tensor, w_gate: Tensor | None) -> Tensor:
        """W_out (diag(r) W_in + diag(s) W_gate) for these weights, (B, T, d, d): transposed, since then the rows of as
        many positions as the memory bound allows go through W_out in one product."""
        blocks = []
        up, gate = w_in.mT.contiguous(), None if w_gate is None else w_gate.mT.contiguous()  # (d, hidden)
        width = chunk_width(self.batch * up.numel(), self.dtype)
        for start in range(0, self.length, width):
            positions = slice(start, start + width)
            inner = self.by_up[:, positions, None] * up
            if gate is not None and self.by_gate is not None:
                inner += self.by_gate[:, positions, None] * gate
            blocks.append(mix(inner, self.w_out.mT))
        return torch.cat(blocks, dim=1).mT

    def _ratio(self, up: Tensor) -> Tensor:
        """act'(h), or act(h)/h under `frozen`; at h = 0 the limit of that ratio is the slope."""
        if not self.frozen:
            return derivative(self.spec.activation, up)
        at_zero = self.spec.cache.get(
            ("slope", up.dtype, up.device), (), lambda: derivative(self.spec.activation, up.new_zeros(()))
        )
        return torch.where(up == 0, at_zero, self.spec.activation(up) / up)


@with_cached_blocks.register
def _(operator: MLPMap) -> LinearOperator:
    return operator.with_cached_blocks()


def mlp_value(spec: MLP, read: Tensor) -> Tensor:
    """What an MLP writes when it reads this, (..., T, d)."""
    normed = NormMap.at(spec.norm, read, False).value
    hidden = _affine(normed, spec.w_in, spec.b_in)
    if spec.w_gate is None:
        hidden = spec.activation(hidden)
    else:
        hidden = spec.activation(_affine(normed, spec.w_gate, spec.b_gate)) * hidden
    out = _affine(hidden, spec.w_out, spec.b_out)
    return out if spec.post_norm is None else NormMap.at(spec.post_norm, out, False).value


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
