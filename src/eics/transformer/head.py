"""A head's linear map, and those of several heads of a layer at once.

    dz = A dv + dA v,    dA = A * (dS - sum_j A dS),    dS = scale (dq k^T + q dk^T)

and under `frozen` (A held) only `A dv`. An entry through one port has that port's differential alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.linalg.blocks import add, by_coordinate, scale_by_position
from eics.linalg.memory import memory_bound
from eics.linalg.operators import Kronecker, LinearOperator, Writer
from eics.linalg.rows import by_matrix, project, to_columns, to_rows
from eics.transformer.attention import AttentionState, Held, pick, rotate
from eics.transformer.closed_forms.head_grams import head_grams, kronecker_squares
from eics.transformer.closed_forms.head_norms import head_norms_squared
from eics.transformer.closed_forms.head_terms import HeadTerms, JoinedTerms
from eics.transformer.closed_forms.head_updates import head_update
from eics.transformer.norm import NormMap

if TYPE_CHECKING:
    from eics.linearized.circuit import Entry, Stalk
    from eics.linearized.junctions import Junction


class HeadMap(LinearOperator):
    """Linear maps of heads of one layer from the residual stream to their writes, through all ports or one.

    The batch is the heads' and the prompts', head by head: products of all heads of a layer are one matmul.
    """

    def __init__(self, state: AttentionState, places: Sequence[int], port: str | None) -> None:
        """`places` are places in `state.heads`; `port` names one or several, None: all."""
        self.state, self.places, self.port = state, tuple(places), port
        _, length, width = state.read.shape
        self.shape = (len(places), *state.read.shape)  # H, B, T, d
        self.batch, self.rows, self.cols = self.shape[0] * self.shape[1], length * width, length * width
        self.dtype, self.device = state.read.dtype, state.read.device
        self.through = set(port) if port else ({"v"} if state.frozen else {"q", "k", "v"})

    @cached_property
    def held(self) -> Held:
        """These heads' state."""
        held = self.state.held
        if self.places == tuple(range(len(self.state.heads))):
            return held
        return self.state.once(("held", self.places), lambda: held.pick(self.places))

    @cached_property
    def w_o(self) -> Tensor:
        """Of the write, by head: (H, d, e)."""
        return self.state.once(
            ("w_o", self.places),
            lambda: pick(self.state.spec.w_o, [self.state.heads[place] for place in self.places]).to(self.dtype),
        )

    @cached_property
    def ports(self) -> tuple[str, ...]:
        """Those that carry something, in the order in which their rows stand in `w_in`."""
        return tuple(port for port in "qkv" if port in self.through)

    @cached_property
    def w_in(self) -> Tensor:
        """Of the ports, one below another, with the norm's gain and centring in them: W diag(w) P, (H, ports*e, d)."""
        return self.state.weights_in([self.state.heads[place] for place in self.places], self.ports)

    @cached_property
    def along(self) -> Tensor:
        """W diag(w) c at the norm's point c, over d s^3: what a change along c takes off; (H, B, 1, T, ports*e)."""
        norm, width = self.state.norm, self.w_o.shape[2]
        if norm.frozen:  # nothing
            return self.w_o.new_zeros(1).expand(1, 1, 1, 1, len(self.ports) * width)

        def make() -> Tensor:
            raw = pick(self.state.raw, self.places)
            if len(self.ports) < 3:
                some = raw.split(width, dim=-1)
                raw = torch.cat([some["qkv".index(port)] for port in self.ports], dim=-1)
            return (raw / (norm.point.shape[-1] * norm.scale.square())).unsqueeze(2)

        return self.state.once(("along", self.places, self.ports), make)

    def mv(self, x: Tensor) -> Tensor:
        """Norm, projections, pattern, W_O."""
        out = project(self.z_change(x), self.w_o.mT)
        if self.state.post is not None:
            out = out * self.state.post.unsqueeze(1)
        return to_columns(out.flatten(0, 1))

    def rmv(self, y: Tensor) -> Tensor:
        """The same road back."""
        back = self.by_head(to_rows(y, self.state.read))
        if self.state.post is not None:
            back = back * self.state.post.unsqueeze(1)
        return self.z_back(project(back, self.w_o))

    def by_head(self, x: Tensor) -> Tensor:
        """(H*B or 1, k, ...) as (H, B, k, ...)."""
        if x.shape[0] == self.batch:
            return x.reshape(*self.shape[:2], *x.shape[1:])
        return x.unsqueeze(0)

    def ports_back(self, cotangent: Tensor) -> Iterator[tuple[str, Tensor]]:
        """`rmv` through each port apart, (H, B, T, d), for one cotangent (B, T, d) of all heads alike."""
        back = project(cotangent[None, :, None], self.w_o)
        width = back.shape[-1]
        for place, (port, rows) in enumerate(self.from_z(back)):
            some = slice(place * width, (place + 1) * width)
            yield port, self._unread(rows, self.w_in[:, some], self.along[..., some]).squeeze(2)

    def z_change(self, x: Tensor) -> Tensor:
        """dz, (H, B, k, T, e), for a block (H*B, T*d, k)."""
        return self.z_from(self._read(self.by_head(to_rows(x, self.state.read))))

    def z_from(self, read: dict[str, Tensor]) -> Tensor:
        """dz, (H, B, k, T, e), from the changes of what is read through each port, of that shape too."""
        terms = []
        if "v" in read:
            terms.append(self.held.pattern.unsqueeze(2) @ read["v"])
        if "q" in read or "k" in read:
            terms.append(by_matrix(self._pattern_change(read), self.held.value))
        return add(iter(terms))

    def z_back(self, back: Tensor) -> Tensor:
        """The transpose of `z_change`: (H, B, k, T, e) to (H*B, T*d, k)."""
        rows = torch.cat([rows for _, rows in self.from_z(back)], dim=-1)
        return to_columns(self._unread(rows, self.w_in, self.along).flatten(0, 1))

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

    def from_z(self, back: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What each port gets of a cotangent of z, before its weights: (H, B, k, T, e), in the order of `ports`."""
        held = self.held
        if self.through & {"q", "k"}:
            # a softmax's Jacobian is symmetric
            scores = self._capped(self._softmax_change(by_matrix(back, held.value.mT)))
        if "q" in self.through:
            yield "q", self._turn_back(by_matrix(scores, held.key), held.q_norm)
        if "k" in self.through:
            yield "k", self._turn_back(scores.mT @ held.query.unsqueeze(2), held.k_norm)
        if "v" in self.through:
            yield "v", held.pattern.mT.unsqueeze(2) @ back

    def singular_squares(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """The Kronecker form of held heads, in float64; None where a norm follows or scales vary within a position."""
        scales = self._by_position(left), self._by_position(right)
        if not self.state.frozen or self.state.post is not None or None in scales:
            return None
        return kronecker_squares(self.double().terms, *scales).flatten(0, 1)

    @property
    def update_rank(self) -> int | None:
        """T^2 under `jacobian`, where prompts are at most half as long as a head is wide, with no cap on scores and no
        norm after the heads."""
        spec, length = self.state.spec, self.shape[2]
        if self.port is not None or self.state.frozen or self.state.post is not None or spec.softcap:
            return None
        return length**2 if 1 < length <= spec.w_o.shape[2] // 2 else None

    def low_rank_update(
        self, left: Tensor | None = None, right: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Of the Kronecker product that values carry, by what queries and keys add
        (`eics.transformer.closed_forms.head_updates`); None where that is no less than a Gram matrix."""
        scales = self._by_position(left), self._by_position(right)
        if self.update_rank is None or scales[0] is None or scales[1] is None:
            return None
        diagonal, columns, middle = head_update(self.double().terms, scales[0], scales[1])
        return diagonal.flatten(0, 1), columns.flatten(0, 1), middle.flatten(0, 1)

    def kronecker(self) -> Kronecker | None:
        """(A D) (x) (W_O W_V diag(w) P) of one head that is held and that no norm follows."""
        if not self.state.frozen or self.state.post is not None or len(self.places) > 1:
            return None
        pattern = self.held.pattern[0] / self.state.norm.scale.mT
        return Kronecker(pattern, self.w_o[0], self.w_in[0])

    @property
    def gram_side(self) -> int:
        """T*e."""
        return int(self.shape[2] * self.state.spec.w_o.shape[2])

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """That of R z instead of W_O z, with W_O = Q R: T*e rows instead of T*d; None where scales on the right differ
        within a position."""
        scale = self._by_position(right)
        if scale is None:
            return None
        wide = self.double()
        return head_grams(wide.terms, wide.write_factor(left), scale).flatten(0, 1).unsqueeze(1)

    def write_factor(self, left: Tensor | None) -> Tensor:
        """R in W_O = Q R at each position, with scales of rows and of a norm that follows in it; (H, B or 1, T or 1, e,
        e)."""
        weight, rows = self.w_o[:, None, None], self._by_position(left)
        if self.state.post is None and rows is not None:  # one factorization for all positions
            factor = self.terms.factor[:, None, None]
            return factor if left is None else factor * rows[..., None, None]
        if self.state.post is not None:
            weight = weight * self.state.post.unsqueeze(-1)
        if left is not None:
            whole = self._by_head(by_coordinate(left, self.rows)).unflatten(-1, self.shape[2:])
            weight = weight * whole.unsqueeze(-1).to(self.dtype)
        found: Tensor = torch.linalg.qr(weight).R
        return found

    @property
    def terms(self) -> HeadTerms:
        """What its closed forms are made of."""
        return HeadTerms(self.state, self.held, [self.state.heads[place] for place in self.places], self.through)

    def _by_position(self, scale: Tensor | None) -> Tensor | None:
        """Scales by coordinate as scales by position in float64, (H or 1, B or 1, T), ones for none; None where they
        differ within a position."""
        if scale is None:
            return torch.ones(1, 1, self.shape[2], dtype=torch.float64, device=self.device)
        found = scale_by_position(scale, self.shape[2])
        return None if found is None else self._by_head(found).double()

    def _by_head(self, scale: Tensor) -> Tensor:
        """(H*B, n) or (1, n) as (H, B, n) or (1, 1, n)."""
        return scale.view(*self.shape[:2], -1) if len(scale) == self.batch else scale.unsqueeze(0)

    def through_few(self, places: Tensor) -> tuple[LinearOperator, LinearOperator]:
        """W_O at those positions, and z there: e numbers."""
        return _WriteAt(self, places), _ZAt(self, places)

    def frobenius_squared(self) -> Tensor | None:
        """In closed form (`eics.transformer.closed_forms.head_norms`), where no norm follows the heads."""
        norms = self._norms_squared
        return None if norms is None else norms.sum(dim=(-2, -1)).flatten()

    def scaled_frobenius_squared(self, left: Tensor, right: Tensor) -> Tensor | None:
        """The same where scales go by whole positions, as masks and relative units do."""
        scales = [scale_by_position(scale, self.shape[2]) for scale in (left, right)]
        known = [scale for scale in scales if scale is not None]
        norms = self._norms_squared
        if norms is None or len(known) < 2:
            return None
        squares = [self._by_head(s).square() for s in known]
        weighted = squares[0].unsqueeze(-1) * norms * squares[1].unsqueeze(-2)
        return weighted.sum(dim=(-2, -1)).flatten()

    @cached_property
    def _norms_squared(self) -> Tensor | None:
        """By pair of positions, (H, B, T, T); one head and prompt at a time where all would break the memory bound."""
        if self.state.post is not None:
            return None
        pairs = 0 if self.through == {"v"} else self.shape[2] ** 2 * self.state.spec.w_o.shape[2]
        if pairs * self.dtype.itemsize > memory_bound():
            return None  # positions x positions x width: for so long a prompt probes cost less
        if self.batch > 1 and self.batch * pairs * self.dtype.itemsize > memory_bound():
            single = [self.prompt(index)._norms_squared for index in range(self.batch)]
            return torch.cat([one for one in single if one is not None]).view(*self.shape[:3], -1)
        room = memory_bound() // max(1, self.shape[1] * pairs * self.dtype.itemsize)  # heads at a time
        if len(self.state.heads) > room:
            return head_norms_squared(self.terms)
        of_all = self.state.once(("norms", self.ports), lambda: self._norms_of_all(room))
        return pick(of_all, self.places)

    def _norms_of_all(self, room: int) -> Tensor:
        """Those of all heads of the layer; of all layers alike at once, for so many heads, and kept for them."""
        known = [sibling() for sibling in self.state.siblings]
        states = [state for state in known if state is not None and JoinedTerms.alike(self.state, state)]
        if self.state not in states or sum(len(state.heads) for state in states) > room:
            states = [self.state]
        every = [HeadTerms(state, state.held, state.heads, self.through) for state in states]
        norms = head_norms_squared(every[0] if len(every) == 1 else JoinedTerms(every))
        found = dict(zip(states, norms.split([len(state.heads) for state in states]), strict=True))
        for state, own in found.items():
            state.once(("norms", self.ports), own.clone)  # a view would keep the norms of all layers
        mine: Tensor = found[self.state]
        return mine

    @property
    def writer(self) -> Writer | None:
        """W_O of a single head, where no norm follows."""
        if self.state.post is not None or len(self.places) > 1:
            return None
        spec = self.state.spec
        return Writer(self.w_o[0], (id(spec), self.state.heads[self.places[0]]), spec.w_o)

    @property
    def home(self) -> object:
        """Its layer, whatever the port."""
        return id(self.state)

    def junction(
        self, entries: "Sequence[Entry]", writers: Mapping[str, Writer], stalks: "Mapping[str, Stalk]"
    ) -> "Junction":
        """By virtual weights (`eics.transformer.fast_sweep.head_junction`)."""
        from eics.transformer.fast_sweep.head_junction import HeadJunction

        return HeadJunction(entries, writers, stalks)

    @property
    def left_factor(self) -> object:
        """The heads: whatever port they are entered through, they write through the same W_O. Not the state: a prompt's
        alone, or in float64, is another for each entry."""
        return (id(self.state.spec), tuple(self.state.heads[place] for place in self.places))

    @property
    def kin(self) -> object:
        """Heads of a layer that are entered through the same port."""
        return (id(self.state), self.port)

    def stack(self, others: Sequence[LinearOperator]) -> LinearOperator:
        """These heads and the others'."""
        if not others:
            return self
        more = [place for other in others if isinstance(other, HeadMap) for place in other.places]
        return HeadMap(self.state, (*self.places, *more), self.port)

    def prompt(self, index: int) -> "HeadMap":
        """One head's map for one prompt: everything is linear algebra on slices."""
        head, row = divmod(index % self.batch, self.shape[1])
        one = self.state.heads[self.places[head]]
        return HeadMap(self.state.at(self.state.read, slice(row, row + 1), (one,)), (0,), self.port)

    def double(self) -> "HeadMap":
        """The maps at the same state, computed in float64."""
        return HeadMap(self.state.at(self.state.read.double()), self.places, self.port)

    def _pattern_change(self, read: dict[str, Tensor]) -> Tensor:
        """dA, (H, B, k, T, T)."""
        held, terms = self.held, []
        if "q" in read:
            terms.append(by_matrix(self._turn(read["q"], held.q_norm), held.key.mT))
        if "k" in read:
            terms.append(by_matrix(self._turn(read["k"], held.k_norm), held.query.mT).mT)
        return self._softmax_change(self._capped(add(iter(terms))))

    def _softmax_change(self, scores: Tensor) -> Tensor:
        """scale A * (dS - sum_j A dS), for the scores before their scale."""
        weighted = (self.state.spec.scale * self.held.pattern).unsqueeze(2) * scores
        return torch.addcmul(weighted, self.held.pattern.unsqueeze(2), weighted.sum(dim=-1, keepdim=True), value=-1.0)

    def _capped(self, scores: Tensor) -> Tensor:
        return scores if self.held.slope is None else scores * self.held.slope.unsqueeze(2)

    def _turn(self, raw: Tensor, norm: NormMap | None) -> Tensor:
        return rotate(raw if norm is None else norm.mv(raw), self.state.rotation)

    def _turn_back(self, turned: Tensor, norm: NormMap | None) -> Tensor:
        raw = rotate(turned, self.state.rotation, back=True)
        return raw if norm is None else norm.rmv(raw)


class _ZAt(LinearOperator):
    """z of heads at one position of each prompt, (B,), from all that they read: e rows."""

    def __init__(self, head: HeadMap, places: Tensor) -> None:
        self.head, self.places = head, places
        self._like(head, rows=head.w_o.shape[2], cols=head.cols, batch=head.batch)
        self.prompts = torch.arange(len(places), device=head.device)

    def mv(self, x: Tensor) -> Tensor:
        """dz there."""
        there = self.head.z_change(x)[:, self.prompts, :, self.places]  # (B, H, k, e)
        return there.transpose(0, 1).flatten(0, 1).mT

    def rmv(self, y: Tensor) -> Tensor:
        """The transpose."""
        heads, prompts, length, _ = self.head.shape
        back = y.new_zeros(heads, prompts, y.shape[2], length, self.rows)
        rows = y.expand(self.batch, -1, -1).mT.unflatten(0, (heads, prompts))  # (H, B, k, e)
        back[:, self.prompts, :, self.places] = rows.transpose(0, 1)
        return self.head.z_back(back)

    def prompt(self, index: int) -> "_ZAt":
        """One head's, for one prompt."""
        return _ZAt(self.head.prompt(index), self.places[index % len(self.places)].unsqueeze(0))

    def double(self) -> "_ZAt":
        """In float64."""
        return _ZAt(self.head.double(), self.places)


class _WriteAt(LinearOperator):
    """What heads write at one position of each prompt, (B,), from their z there: d rows of e columns."""

    def __init__(self, head: HeadMap, places: Tensor) -> None:
        self.head, self.places = head, places
        self._like(head, rows=head.shape[3], cols=head.w_o.shape[2], batch=head.batch)
        self.weight = head.w_o.unsqueeze(1).expand(-1, head.shape[1], -1, -1)  # (H, B, d, e)
        if head.state.post is not None:
            prompts = torch.arange(len(places), device=head.device)
            self.weight = self.weight * head.state.post[prompts, places].unsqueeze(-1)
        self.weight = self.weight.flatten(0, 1)

    def mv(self, x: Tensor) -> Tensor:
        """W_O z."""
        return self.weight @ x

    def rmv(self, y: Tensor) -> Tensor:
        """The transpose."""
        return self.weight.mT @ y

    def prompt(self, index: int) -> "_WriteAt":
        """One head's, for one prompt."""
        return _WriteAt(self.head.prompt(index), self.places[index % len(self.places)].unsqueeze(0))

    def double(self) -> "_WriteAt":
        """In float64."""
        return _WriteAt(self.head.double(), self.places)
