"""A head's linear map, and those of several heads of a layer at once.

    dz = A dv + dA v,    dA = A * (dS - sum_j A dS),    dS = scale (dq k^T + q dk^T)

and under `frozen` (A constant) only `A dv`. An entry through one port has that port's differential alone. What is known
of these maps in closed form: `closed_forms/head.py`.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import add, by_matrix, project, to_block, to_rows
from eics.linalg.operators import LinearOperator
from eics.linalg.stacking import stack_all, stack_key
from eics.transformer.attention import AttentionActivations, AttentionState, pick, rotate
from eics.transformer.norm import NormMap


class HeadMap(LinearOperator):
    """Linear maps of heads of one layer from the residual stream to their writes, through all ports or some.

    The batch goes head by head, and prompt by prompt within a head: products of all heads of a layer are one matmul.
    """

    def __init__(self, state: AttentionState, places: Sequence[int], port: str | None) -> None:
        """`places` are indices into `state.heads`; `port` names one or several ports, None stands for all."""
        self.state, self.places, self.port = state, tuple(places), port
        _, length, width = state.read.shape
        self.shape = (len(places), *state.read.shape)  # H, B, T, d
        self.batch, self.rows, self.cols = self.shape[0] * self.shape[1], length * width, length * width
        self.dtype, self.device = state.read.dtype, state.read.device
        self.through = set(port) if port else ({"v"} if state.frozen else {"q", "k", "v"})

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads' numbers in the model."""
        return tuple(self.state.heads[place] for place in self.places)

    @cached_property
    def activations(self) -> AttentionActivations:
        """Queries, keys, values and patterns of these heads."""
        activations = self.state.activations
        if self.places == tuple(range(len(self.state.heads))):
            return activations
        return self.state.once(("activations", self.places), lambda: activations.pick(self.places))

    @cached_property
    def w_o(self) -> Tensor:
        """The output weights by head, (H, d, e)."""
        return self.state.once(("w_o", self.places), lambda: pick(self.state.spec.w_o, self.heads).to(self.dtype))

    @cached_property
    def ports(self) -> tuple[str, ...]:
        """The ports that carry something, in the order of their rows in `w_in`."""
        return tuple(port for port in "qkv" if port in self.through)

    @cached_property
    def w_in(self) -> Tensor:
        """W diag(w) P of the ports, one below another, (H, ports*e, d)."""
        return self.state.weights_in(self.heads, self.ports)

    @cached_property
    def along(self) -> Tensor:
        """W diag(w) c at the norm's point c, over d s^3: what a change along c takes off; (H, B, 1, T, ports*e)."""
        norm, width = self.state.norm, self.w_o.shape[2]
        if norm.frozen:  # nothing
            return self.w_o.new_zeros(1).expand(1, 1, 1, 1, len(self.ports) * width)

        def make() -> Tensor:
            raw = pick(self.state.raw, self.places)
            if len(self.ports) < 3:
                by_port = dict(zip("qkv", raw.split(width, dim=-1), strict=True))
                raw = torch.cat([by_port[port] for port in self.ports], dim=-1)
            return (raw / (norm.point.shape[-1] * norm.scale.square())).unsqueeze(2)

        return self.state.once(("along", self.places, self.ports), make)

    def mv(self, x: Tensor) -> Tensor:
        out = project(self.z_change(x), self.w_o.mT)
        if self.state.post is not None:
            out = out * self.state.post.unsqueeze(1)
        return to_block(out.flatten(0, 1))

    def rmv(self, y: Tensor) -> Tensor:
        back = self.by_head(to_rows(y, self.shape[3]))
        if self.state.post is not None:
            back = back * self.state.post.unsqueeze(1)
        return self.z_back(project(back, self.w_o))

    def prompt(self, index: int) -> "HeadMap":
        """One head's map for one prompt."""
        head, row = divmod(index % self.batch, self.shape[1])
        state = self.state.at(self.state.read, slice(row, row + 1), (self.heads[head],))
        return HeadMap(state, (0,), self.port)

    def double(self) -> "HeadMap":
        """The maps at the same state, computed in float64."""
        return HeadMap(self.state.at(self.state.read.double()), self.places, self.port)

    def by_head(self, x: Tensor) -> Tensor:
        """(H*B or 1, k, ...) as (H, B, k, ...)."""
        if x.shape[0] == self.batch:
            return x.reshape(*self.shape[:2], *x.shape[1:])
        return x.unsqueeze(0)

    def ports_back(self, cotangent: Tensor) -> Iterator[tuple[str, Tensor]]:
        """`rmv` through each port alone, (H, B, T, d), for one cotangent (B, T, d) shared by all heads."""
        back = project(cotangent[None, :, None], self.w_o)
        width = back.shape[-1]
        for index, (port, rows) in enumerate(self.from_z(back)):
            columns = slice(index * width, (index + 1) * width)
            yield port, self._unread(rows, self.w_in[:, columns], self.along[..., columns]).squeeze(2)

    def z_change(self, x: Tensor) -> Tensor:
        """dz, (H, B, k, T, e), for a block (H*B, T*d, k)."""
        return self.z_from(self._read(self.by_head(to_rows(x, self.shape[3]))))

    def z_from(self, read: dict[str, Tensor]) -> Tensor:
        """dz, (H, B, k, T, e), from the changes of queries, keys and values, of that shape too."""
        terms = []
        if "v" in read:
            terms.append(self.activations.pattern.unsqueeze(2) @ read["v"])
        if "q" in read or "k" in read:
            terms.append(by_matrix(self._pattern_change(read), self.activations.value))
        return add(terms)

    def z_back(self, back: Tensor) -> Tensor:
        """The transpose of `z_change`: (H, B, k, T, e) to (H*B, T*d, k)."""
        rows = torch.cat([rows for _, rows in self.from_z(back)], dim=-1)
        return to_block(self._unread(rows, self.w_in, self.along).flatten(0, 1))

    def from_z(self, back: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What a cotangent of z is at each port, before its weights: (H, B, k, T, e), in the order of `ports`."""
        state = self.activations
        if self.through & {"q", "k"}:
            # a softmax's Jacobian is symmetric
            scores = self._capped(self._softmax_change(by_matrix(back, state.value.mT)))
        if "q" in self.through:
            yield "q", self._turn_back(by_matrix(scores, state.key), state.q_norm)
        if "k" in self.through:
            yield "k", self._turn_back(scores.mT @ state.query.unsqueeze(2), state.k_norm)
        if "v" in self.through:
            yield "v", state.pattern.mT.unsqueeze(2) @ back

    def _read(self, rows: Tensor) -> dict[str, Tensor]:
        """W N x for each port, (H, B, k, T, e), by the rank-one form of the norm's Jacobian:
        `W N = (W diag(w) P) / s - (W diag(w) c) c^T / (d s^3)`."""
        norm = self.state.norm
        out = project(rows, self.w_in.mT) / norm.scale.unsqueeze(1)
        if not norm.frozen:
            out = out - self.along * (rows * norm.point.unsqueeze(1)).sum(dim=-1, keepdim=True)
        return dict(zip(self.ports, out.chunk(len(self.ports), dim=-1), strict=True))

    def _unread(self, rows: Tensor, weight: Tensor, along: Tensor) -> Tensor:
        """The transpose of `_read`, for some of the ports: (H, B, k, T, .) to (H, B, k, T, d)."""
        norm = self.state.norm
        out = project(rows / norm.scale.unsqueeze(1), weight)
        if norm.frozen:
            return out
        return torch.addcmul(out, norm.point.unsqueeze(1), (rows * along).sum(dim=-1, keepdim=True), value=-1.0)

    def _pattern_change(self, read: dict[str, Tensor]) -> Tensor:
        """dA, (H, B, k, T, T)."""
        state, terms = self.activations, []
        if "q" in read:
            terms.append(by_matrix(self._turn(read["q"], state.q_norm), state.key.mT))
        if "k" in read:
            terms.append(by_matrix(self._turn(read["k"], state.k_norm), state.query.mT).mT)
        return self._softmax_change(self._capped(add(terms)))

    def _softmax_change(self, scores: Tensor) -> Tensor:
        """scale A * (dS - sum_j A dS), for the scores before their scale."""
        pattern = self.activations.pattern
        weighted = (self.state.spec.scale * pattern).unsqueeze(2) * scores
        return torch.addcmul(weighted, pattern.unsqueeze(2), weighted.sum(dim=-1, keepdim=True), value=-1.0)

    def _capped(self, scores: Tensor) -> Tensor:
        slope = self.activations.slope
        return scores if slope is None else scores * slope.unsqueeze(2)

    def _turn(self, raw: Tensor, norm: NormMap | None) -> Tensor:
        return rotate(raw if norm is None else norm.mv(raw), self.state.rotation)

    def _turn_back(self, turned: Tensor, norm: NormMap | None) -> Tensor:
        raw = rotate(turned, self.state.rotation, back=True)
        return raw if norm is None else norm.rmv(raw)


@stack_key.register
def _(operator: HeadMap) -> tuple[object, ...]:
    return (id(operator.state), operator.port)


@stack_all.register
def _(first: HeadMap, operators: Sequence[HeadMap]) -> HeadMap:
    return HeadMap(first.state, [place for operator in operators for place in operator.places], first.port)
