"""MLPs: position by position, `W_out diag(r) W_in N`, and gated ones with the gate's differential beside it.

| | plain | gated: hidden `act(g) * u` |
|---|---|---|
| `jacobian` | r = act'(h) | `act'(g) u dg + act(g) du` |
| `frozen` | r = act(h) / h | `act(g) du`: the activated gate is held |
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from eics.operators import LinearOperator, Writer
from eics.transformer.blocks import by_position, mix, project, to_columns, to_rows
from eics.transformer.mlp_norms import mlp_norms_squared
from eics.transformer.norm import NormMap, derivative
from eics.transformer.spec import MLP

_TOGETHER = 8
"""Parents whose hidden layers go through W_out at once: more rows make a product no faster, and take more memory."""


class MLPMap(LinearOperator):
    """An MLP's linear map from the residual stream to its write, at the observed state; also its own value there."""

    def __init__(self, spec: MLP, read: Tensor, frozen: bool) -> None:
        self.spec, self.read, self.frozen = spec, read, frozen
        batch, length, width = read.shape
        self.batch, self.rows, self.cols = batch, length * width, length * width
        self.dtype, self.device = read.dtype, read.device
        self.blocks = length
        self.norm = NormMap.at(spec.norm, read, frozen)
        self.w_in, self.w_out = spec.w_in.to(self.dtype), spec.w_out.to(self.dtype)
        self.w_gate = None if spec.w_gate is None else spec.w_gate.to(self.dtype)
        self.up = None if self.w_gate is not None and frozen else self._up  # a held gate needs no more
        self.gate = None if self.w_gate is None else _affine(self.norm.value, self.w_gate, spec.b_gate)
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
        """Before any norm that follows."""
        up = self._up if self.up is None else self.up
        hidden = self.spec.activation(up) if self.w_gate is None else self.by_up * up
        return _affine(hidden, self.w_out, self.spec.b_out)

    @cached_property
    def function(self) -> Tensor:
        """What the MLP's own function writes at the observed state, (B, T, d)."""
        return self._out if self.post is None else self.post.value

    def constant(self, biases: Tensor) -> Tensor:
        """f(x) - M (x - biases) under `frozen`, (B, T, d): what is left when every upstream node writes zero.

        The hidden layer reads `W_in N x` and constants beside it, so only those go through W_out; a model without
        biases has none.
        """
        assert self.frozen
        through = (self.w_in * self.norm.weight) @ (biases - biases.mean() if self.norm.spec.centred else biases)
        rest = _rest(self.norm, self.w_in, self.spec.b_in) + through / self.norm.scale
        out = mix(self.by_up * rest, self.w_out.mT) if bool(rest.any()) else torch.zeros_like(self.read)
        if self.spec.b_out is not None:
            out = out + self.spec.b_out.to(self.dtype)
        if self.post is None:
            return out
        out = self.post.mv(out.unsqueeze(1)).squeeze(1)
        return out if self.post.spec.bias is None else out + self.post.spec.bias.to(self.dtype)

    def along(self, weight: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """W diag(w) c at the norm's point c, from `value = W norm(x) + bias`, which is known: no product."""
        return (value - _rest(self.norm, weight, bias)) * self.norm.scale

    def mv(self, x: Tensor) -> Tensor:
        """Norm, in, nonlinearity, out."""
        normed = self.norm.mv(to_rows(x, self.read))
        hidden = mix(normed, self.w_in.mT) * self.by_up.unsqueeze(1)
        if self.w_gate is not None and self.by_gate is not None:
            hidden = hidden + mix(normed, self.w_gate.mT) * self.by_gate.unsqueeze(1)
        out = mix(hidden, self.w_out.mT)
        return to_columns(out if self.post is None else self.post.mv(out))

    def after(self, read: Sequence[tuple[Writer, Tensor]]) -> Tensor | None:
        """Norm and W_in after W_O in one: `W_in diag(w) P W_O`, (hidden, e), depends on weights alone.

        By the rank-one form of the norm's Jacobian, with `p = W_in diag(w) c`,
        `W_in N W_O z = (W_in diag(w) P W_O z) / s - p (c . W_O z) / (d s^3)`. None where these matrices would be larger
        than the MLP's own.
        """
        if sum(writer.weight.shape[1] for writer, _ in read) > 2 * self.read.shape[2]:
            return None
        images = []
        for start in range(0, len(read), _TOGETHER):
            some = read[start : start + _TOGETHER]
            hidden = self._hidden_after(some, "u")
            if self.by_gate is not None:
                hidden += self._hidden_after(some, "g")
            images.append(mix(hidden, self.w_out.mT))  # (nodes, B, T, d)
        out = torch.cat(images).transpose(0, 1)
        return out if self.post is None else self.post.mv(out)

    def _hidden_after(self, read: Sequence[tuple[Writer, Tensor]], side: str) -> Tensor:
        """The hidden layer's change from one of its sides, (nodes, B, T, hidden)."""
        weight, bias, value, gain = {
            "u": (self.w_in, self.spec.b_in, self.up, self.by_up),
            "g": (self.w_gate, self.spec.b_gate, self.gate, self.by_gate),
        }[side]
        assert weight is not None
        assert gain is not None
        norm, writers = self.norm, [writer for writer, _ in read]
        z = torch.stack([z.expand(self.batch, -1, -1) for _, z in read])  # (nodes, B, T, e)
        hidden = project(z, self._virtual(side, weight, writers)).mul_(gain / norm.scale)
        if not norm.frozen:
            assert value is not None
            along = self.along(weight, value, bias) * gain / (norm.point.shape[-1] * norm.scale**3)
            point = mix(norm.point, torch.cat([writer.weight for writer in writers], dim=1))
            points = point.unflatten(-1, (len(writers), -1)).movedim(-2, 0)
            hidden.addcmul_(along, (z * points).sum(dim=-1, keepdim=True), value=-1.0)
        return hidden

    def _virtual(self, side: str, weight: Tensor, writers: Sequence[Writer]) -> Tensor:
        """(W diag(w) P W_O)^T of each, (nodes, e, hidden); kept."""

        def make() -> Tensor:
            gained = weight * self.norm.weight
            gained = gained - gained.mean(dim=1, keepdim=True) if self.norm.spec.centred else gained
            return torch.stack([writer.weight.mT @ gained.mT for writer in writers])

        name = (side, tuple(writer.key for writer in writers), self.dtype)
        origins = [self.spec.w_in if side == "u" else self.spec.w_gate, self.spec.norm.weight]
        weights = [w for w in (*origins, *(writer.origin for writer in writers)) if w is not None]
        return self.spec.kept.get(name, weights, make)

    def rmv(self, y: Tensor) -> Tensor:
        """The same road back."""
        back = to_rows(y, self.read)
        hidden = mix(back if self.post is None else self.post.rmv(back), self.w_out)
        total = mix(hidden * self.by_up.unsqueeze(1), self.w_in)
        if self.w_gate is not None and self.by_gate is not None:
            total = total + mix(hidden * self.by_gate.unsqueeze(1), self.w_gate)
        return to_columns(self.norm.rmv(total))

    def frobenius_squared(self) -> Tensor | None:
        """In closed form (`eics.transformer.mlp_norms`), where no norm follows."""
        return None if self._norms_squared is None else self._norms_squared.sum(dim=1)

    def scaled_frobenius_squared(self, left: Tensor, right: Tensor) -> Tensor | None:
        """The same where scales go by whole positions, as masks and relative units do."""
        scales = [by_position(scale, self.read) for scale in (left, right)]
        if self._norms_squared is None or scales[0] is None or scales[1] is None:
            return None
        return (self._norms_squared * (scales[0] * scales[1]).square()).sum(dim=1)

    @cached_property
    def _norms_squared(self) -> Tensor | None:
        return mlp_norms_squared(self)

    def prompt(self, index: int) -> "MLPMap":
        """The map for one prompt."""
        return MLPMap(self.spec, self.read[index : index + 1], self.frozen)

    def double(self) -> "MLPMap":
        """The map at the same state, computed in float64."""
        return MLPMap(self.spec, self.read.double(), self.frozen)

    def written_at(self, places: Tensor) -> LinearOperator:
        """An MLP acts position by position: one position instead of all."""
        return _MLPAt(self, places)

    def _ratio(self, up: Tensor) -> Tensor:
        """act'(h), or act(h)/h where held; at h = 0 the ratio's limit is the slope."""
        if not self.frozen:
            return derivative(self.spec.activation, up)
        slope = derivative(self.spec.activation, torch.zeros_like(up))
        return torch.where(up == 0, slope, self.spec.activation(up) / torch.where(up == 0, 1.0, up))


class _MLPAt(LinearOperator):
    """An MLP's map at one position of each prompt, (B,); zero elsewhere."""

    def __init__(self, whole: MLPMap, places: Tensor) -> None:
        self.whole, self.places = whole, places
        self._like(whole, rows=whole.rows, cols=whole.cols, batch=whole.batch)
        self.prompts = torch.arange(self.batch, device=self.device)
        self.one = MLPMap(whole.spec, whole.read[self.prompts, places].unsqueeze(1), whole.frozen)

    @property
    def reads(self) -> Tensor:
        """What is written there is read there."""
        return self.places

    def mv(self, x: Tensor) -> Tensor:
        """The MLP's, at those positions."""
        return self._there(self.one.mv, x)

    def rmv(self, y: Tensor) -> Tensor:
        """The transpose."""
        return self._there(self.one.rmv, y)

    def _there(self, product: Callable[[Tensor], Tensor], block: Tensor) -> Tensor:
        rows = to_rows(block, self.whole.read).expand(self.batch, -1, -1, -1)  # (B, k, T, d)
        here = rows[self.prompts, :, self.places]  # (B, k, d)
        out = torch.zeros_like(rows)
        out[self.prompts, :, self.places] = product(here.mT).mT
        return to_columns(out)

    def prompt(self, index: int) -> "_MLPAt":
        """For one prompt."""
        return _MLPAt(self.whole.prompt(index), self.places[index : index + 1])

    def double(self) -> "_MLPAt":
        """In float64."""
        return _MLPAt(self.whole.double(), self.places)


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


def _rest(norm: NormMap, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `W norm(x) + bias` is without x, (out,)."""
    out = torch.zeros_like(weight[:, 0]) if norm.spec.bias is None else weight @ norm.spec.bias.to(weight.dtype)
    return out if bias is None else out + bias.to(weight.dtype)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = x @ weight.to(x.dtype).mT
    return out if bias is None else out + bias.to(x.dtype)
