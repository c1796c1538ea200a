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
from torch.nn import functional as F

from eics.linalg.blocks import gram64, scale_by_position
from eics.linalg.host_device import to_host
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator, Writer
from eics.linalg.rows import by_weight, mix, project, to_columns, to_rows
from eics.models.spec import MLP
from eics.transformer.closed_forms.mlp_norms import mlp_norms_squared
from eics.transformer.norm import NormMap, derivative

_TOGETHER = 8
"""Parents whose hidden layers go through W_out at once: more rows make a product no faster, and take more memory."""


class MLPMap(LinearOperator):
    """An MLP's linear map from the residual stream to its write, at the observed state; also its own value there.

    One that remembers makes its matrices once, (B, T, d, d), and multiplies with them.
    """

    remembers = False

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

    def constant(self, biases: Tensor, made_of: Sequence[Tensor]) -> Tensor:
        """f(x) - M (x - biases) under `frozen`, (B or 1, T, d): what is left when every upstream node writes zero.

        The hidden layer reads `W_in N x` and constants beside it, so only those go through W_out; a model without
        biases has none. `made_of` are the weights that `biases` is the sum of.
        """
        assert self.frozen
        spec, centred = self.spec, self.norm.spec.centred

        def make() -> Tensor:
            through = (self.w_in * self.norm.weight) @ (biases - biases.mean() if centred else biases)
            return torch.stack([_rest(self.norm, self.w_in, spec.b_in), through])

        own = (spec.w_in, spec.b_in, spec.norm.weight, spec.norm.bias)
        weights = [*(weight for weight in own if weight is not None), *made_of]
        rest, through = fixed = spec.kept.get(("constant", self.dtype), weights, make)
        anything = spec.kept.get(("constant there", self.dtype), weights, lambda: fixed.any().cpu())
        out = torch.zeros_like(self.read[:1])
        if to_host(anything):
            out = mix(self.by_up * torch.addcdiv(rest, through, self.norm.scale), self.w_out.mT)
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
        if self.remembers:
            rows = self.norm.core(to_rows(x, self.read)).transpose(1, 2)  # (B, T, k, d)
            return to_columns((rows @ self._matrices.mT).transpose(1, 2))
        normed = self.norm.mv(to_rows(x, self.read))
        hidden = by_weight(normed, self.w_in.mT, self.spec.w_in.mT) * self.by_up.unsqueeze(1)
        if self.w_gate is not None and self.spec.w_gate is not None and self.by_gate is not None:
            gated = by_weight(normed, self.w_gate.mT, self.spec.w_gate.mT)
            hidden = torch.addcmul(hidden, gated, self.by_gate.unsqueeze(1))
        out = by_weight(hidden, self.w_out.mT, self.spec.w_out.mT)
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
        if self.remembers:
            return to_columns(self.norm.core((back.transpose(1, 2) @ self._matrices).transpose(1, 2)))
        hidden = by_weight(back if self.post is None else self.post.rmv(back), self.w_out, self.spec.w_out)
        total = by_weight(hidden * self.by_up.unsqueeze(1), self.w_in, self.spec.w_in)
        if self.w_gate is not None and self.spec.w_gate is not None and self.by_gate is not None:
            total = total + by_weight(hidden * self.by_gate.unsqueeze(1), self.w_gate, self.spec.w_gate)
        return to_columns(self.norm.rmv(total))

    def frobenius_squared(self) -> Tensor | None:
        """In closed form (`eics.transformer.closed_forms.mlp_norms`), where no norm follows."""
        return None if self._norms_squared is None else self._norms_squared.sum(dim=1)

    def scaled_frobenius_squared(self, left: Tensor, right: Tensor) -> Tensor | None:
        """The same where scales go by whole positions, as masks and relative units do."""
        scales = [scale_by_position(scale, self.read.shape[1]) for scale in (left, right)]
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

    def picked(self, some: Callable[[Tensor], Tensor]) -> "MLPMap":
        """The map at some of the positions: what is known of all is picked, not computed anew."""
        one = MLPMap.__new__(MLPMap)
        one.spec, one.frozen, one.read = self.spec, self.frozen, some(self.read)
        one.batch, one.blocks, width = one.read.shape
        one.rows = one.cols = one.blocks * width
        one.dtype, one.device = self.dtype, self.device
        one.w_in, one.w_out, one.w_gate = self.w_in, self.w_out, self.w_gate
        one.norm, one.post = self.norm.each(some), None if self.post is None else self.post.each(some)
        one.by_up, more = some(self.by_up), (self.up, self.gate, self.by_gate)
        one.up, one.gate, one.by_gate = (None if tensor is None else some(tensor) for tensor in more)
        if self.remembers:
            one.remembers, one._matrices = True, some(self._matrices)
        return one

    def remembering(self) -> "MLPMap":
        """The same, for many products; where a norm follows, itself."""
        if self.post is not None or self.remembers:
            return self
        one = self.picked(lambda tensor: tensor)
        one.remembers = True
        return one

    @cached_property
    def _matrices(self) -> Tensor:
        """Those that are remembered."""
        return self._make_matrices()

    def _make_matrices(self) -> Tensor:
        """W_out (diag(r) W_in + diag(s) W_gate) diag(w) P at each position, (B, T, d, d)."""
        return self._middle(self._folded(self.w_in), None if self.w_gate is None else self._folded(self.w_gate))

    def written_at(self, places: Tensor) -> LinearOperator:
        """An MLP acts position by position: one position instead of all."""
        return _MLPAt(self, places)

    def at(self, places: Tensor) -> "MLPMap":
        """The map at one position of each prompt, (B,)."""
        prompts = torch.arange(self.batch, device=self.device)
        return self.picked(lambda tensor: tensor[prompts, places].unsqueeze(1))

    def diagonal_blocks(self) -> Tensor:
        """W_out (diag(r) W_in + diag(s) W_gate) between the norms at each position, one product each; (B, T, d, d)."""
        if self.remembers:
            return self.norm.core(self._matrices.transpose(1, 2)).transpose(1, 2)
        blocks = self.norm.rmv(self._middle(self.w_in, self.w_gate).transpose(1, 2))  # rows as vectors: (B, d, T, d)
        if self.post is None:
            return blocks.transpose(1, 2)
        return self.post.mv(blocks.transpose(1, 3)).permute(0, 2, 3, 1)

    def dense(self) -> Tensor:
        """Of one position from its weights; of several by products."""
        return self.diagonal_blocks().squeeze(1) if self.blocks == 1 else super().dense()

    @property
    def gram_side(self) -> int | None:
        """d, where no norm follows."""
        return self.read.shape[2] if self.post is None else None

    @property
    def gram_copies(self) -> int:
        """The blocks, what they are made from and their Gram matrices."""
        return 3 * self.blocks

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """`M M^T / s^2 + beta M c (M c)^T` at each position, with the norm's gain and centring in M, by the rank-one
        form of N N^T; None where scales differ within a position."""
        scales = [None if scale is None else scale_by_position(scale, self.read.shape[1]) for scale in (left, right)]
        if self.post is not None or any(
            scale is not None and found is None for scale, found in zip((left, right), scales, strict=True)
        ):
            return None
        middle = self._matrices if self.remembers else self._make_matrices()
        norm = NormMap.at(self.spec.norm, self.read.double(), self.frozen)  # what N annihilates, it does to float64
        gram = gram64(middle) * norm.inverse[..., None, None]
        if norm.beta is not None:
            along = middle.double() @ norm.point.unsqueeze(-1)
            gram.addcmul_(norm.beta[..., None, None] * along, along.mT)
        for scale in scales:
            if scale is not None:
                gram *= scale.double().square()[..., None, None]
        return gram

    def _middle(self, w_in: Tensor, w_gate: Tensor | None) -> Tensor:
        """W_out (diag(r) W_in + diag(s) W_gate), (B, T, d, d), for these weights: transposed, for the rows of as many
        positions as the memory bound allows go through W_out in one product."""
        found = []
        up, gate = w_in.mT.contiguous(), None if w_gate is None else w_gate.mT.contiguous()  # (d, hidden)
        for some in torch.arange(self.blocks).split(chunk_width(self.batch * up.numel(), self.dtype)):
            places = slice(int(some[0]), int(some[-1]) + 1)
            inner = self.by_up[:, places, None] * up
            if gate is not None and self.by_gate is not None:
                inner += self.by_gate[:, places, None] * gate
            found.append(mix(inner, self.w_out.mT))
        return torch.cat(found, dim=1).mT

    def _folded(self, weight: Tensor) -> Tensor:
        """W diag(w) P."""
        weight = weight * self.norm.weight
        return weight - weight.mean(dim=1, keepdim=True) if self.norm.spec.centred else weight

    def _ratio(self, up: Tensor) -> Tensor:
        """act'(h), or act(h)/h where held; at h = 0 the ratio's limit is the slope."""
        if not self.frozen:
            return derivative(self.spec.activation, up)
        at_zero = self.spec.kept.get(
            ("slope", up.dtype, up.device), (), lambda: derivative(self.spec.activation, up.new_zeros(()))
        )
        return torch.where(up == 0, at_zero, self.spec.activation(up) / up)


class _MLPAt(LinearOperator):
    """An MLP's map at one position of each prompt, (B,); zero elsewhere."""

    def __init__(self, whole: MLPMap, places: Tensor) -> None:
        self.whole, self.places = whole, places
        self._like(whole, rows=whole.rows, cols=whole.cols, batch=whole.batch)
        self.prompts = torch.arange(self.batch, device=self.device)
        self.one = whole.at(places)

    @property
    def reads(self) -> Tensor:
        """What is written there is read there."""
        return self.places

    def at(self, places: Tensor) -> MLPMap:  # noqa: ARG002
        """What is written there is read there."""
        return self.one

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
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
