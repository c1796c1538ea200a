"""What is known of a head's map: a Kronecker product if its pattern is frozen, a low-rank update of one on a short
prompt, and in general a Gram matrix of side T*e; its norm by pair of positions.

Scales (masks, relative units) must go by whole positions; else there is no closed form.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, scale_by_position
from eics.linalg.memory import memory_bound
from eics.linalg.structure import GramOnly, Kronecker, LowRankUpdate, structure
from eics.transformer.attention import pick
from eics.transformer.closed_forms.head_grams import head_grams
from eics.transformer.closed_forms.head_norms import head_norms_squared
from eics.transformer.closed_forms.head_terms import HeadTerms, JoinedTerms
from eics.transformer.closed_forms.head_updates import head_update
from eics.transformer.head import HeadMap


@structure.register
def head_structure(head: HeadMap) -> GramOnly:
    """Kronecker, low-rank update or Gram matrix, in that order of preference."""
    spec, length = head.state.spec, head.shape[2]
    known: dict[str, Any] = {
        "rows": head.rows,
        "cols": head.cols,
        "norm": lambda left, right: _norm(head, left, right),
        "side": length * spec.head_width,
        "gram": lambda left, right: _gram(head, left, right),
        # Whatever port a head is entered through, it writes through the same W_O. Not the state: that of one prompt, or
        # in float64, is another one for each entry.
        "left_factor": (id(spec), head.heads),
    }
    if head.state.post is not None:
        return GramOnly(**known)
    if head.state.frozen:
        terms = cache(lambda: terms_of(head.double()))
        return Kronecker(
            **known,
            positions=lambda left, right: _frozen_positions(head, terms, left, right),
            weight_squares=lambda: terms().value_squares.repeat_interleave(head.shape[1], dim=0),
        )
    if head.port is None and not spec.softcap and 1 < length <= spec.head_width // 2:
        return LowRankUpdate(**known, columns=length**2, update=lambda left, right: _update(head, left, right))
    return GramOnly(**known)


def terms_of(head: HeadMap) -> HeadTerms:
    """What the closed forms of these heads are made of."""
    return HeadTerms(head.state, head.activations, head.heads, head.through)


def _frozen_positions(
    head: HeadMap, terms: Callable[[], HeadTerms], left: Tensor | None, right: Tensor | None
) -> Tensor | None:
    """A D with its scales, (H*B, T, T): `J = (A D) (x) (W_O W_V diag(w) P)`, the denominators of the norm in D."""
    rows, columns = _by_position(head, left), _by_position(head, right)
    if rows is None or columns is None:
        return None
    pattern = terms().pattern * terms().inverse.sqrt().unsqueeze(-2)
    return (pattern * rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(0, 1)


def _update(head: HeadMap, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """The Kronecker product that values carry, updated by what queries and keys add (`head_updates.py`)."""
    rows, columns = _by_position(head, left), _by_position(head, right)
    if rows is None or columns is None:
        return None
    diagonal, low_rank, middle = head_update(terms_of(head.double()), rows, columns)
    return diagonal.flatten(0, 1), low_rank.flatten(0, 1), middle.flatten(0, 1)


def _gram(head: HeadMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """The Gram matrix of R z instead of W_O z, with W_O = Q R: T*e rows instead of T*d."""
    columns = _by_position(head, right)
    if columns is None:
        return None
    wide = head.double()
    return head_grams(terms_of(wide), _write_factor(wide, left), columns).flatten(0, 1).unsqueeze(1)


def _write_factor(head: HeadMap, left: Tensor | None) -> Tensor:
    """R in W_O = Q R at each position, (H, B or 1, T or 1, e, e), with the scales of rows and of a post-norm in it."""
    weight, rows = head.w_o[:, None, None], _by_position(head, left)
    if head.state.post is None and rows is not None:  # one factorization for all positions
        factor = terms_of(head).factor[:, None, None]
        return factor if left is None else factor * rows[..., None, None]
    if head.state.post is not None:
        weight = weight * head.state.post.unsqueeze(-1)
    if left is not None:
        whole = _by_head(head, by_coordinate(left, head.rows)).unflatten(-1, head.shape[2:])
        weight = weight * whole.unsqueeze(-1).to(head.dtype)
    by_position: Tensor = torch.linalg.qr(weight).R
    return by_position


def _norm(head: HeadMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """||J||_F^2 for each head and prompt, (H*B,)."""
    scales = [None if scale is None else scale_by_position(scale, head.shape[2]) for scale in (left, right)]
    if (left is not None and scales[0] is None) or (right is not None and scales[1] is None):
        return None
    norms = head_norms(head)
    if norms is None:
        return None
    if scales[0] is not None:
        norms = _by_head(head, scales[0]).square().unsqueeze(-1) * norms
    if scales[1] is not None:
        norms = norms * _by_head(head, scales[1]).square().unsqueeze(-2)
    return norms.sum(dim=(-2, -1)).flatten()


def head_norms(head: HeadMap) -> Tensor | None:
    """||J_ts||_F^2 by pair of positions, (H, B, T, T); None after a post-norm, or if T x T x e breaks the memory bound.

    If only all heads and prompts together break the bound, they go one at a time.
    """
    if head.state.post is not None:
        return None
    pairs = 0 if head.through == {"v"} else head.shape[2] ** 2 * head.state.spec.head_width
    bytes_of_one = pairs * head.dtype.itemsize
    if bytes_of_one > memory_bound():
        return None  # on so long a prompt probes cost less
    if head.batch > 1 and head.batch * bytes_of_one > memory_bound():
        singles = [head_norms(head.prompt(index)) for index in range(head.batch)]
        return torch.cat([single for single in singles if single is not None]).view(*head.shape[:3], -1)
    heads_at_once = memory_bound() // max(1, head.shape[1] * bytes_of_one)
    if len(head.state.heads) > heads_at_once:
        return head_norms_squared(terms_of(head))
    return pick(head.state.once(("norms", head.ports), lambda: _layer_norms(head, heads_at_once)), head.places)


def _layer_norms(head: HeadMap, heads_at_once: int) -> Tensor:
    """The norms of all heads of the layer; all layers are computed together if their heads fit."""
    alive = [sibling() for sibling in head.state.siblings]
    states = [state for state in alive if state is not None and JoinedTerms.alike(head.state, state)]
    if head.state not in states or sum(len(state.heads) for state in states) > heads_at_once:
        states = [head.state]
    terms = [HeadTerms(state, state.activations, state.heads, head.through) for state in states]
    norms = head_norms_squared(terms[0] if len(terms) == 1 else JoinedTerms(terms))
    by_layer = dict(zip(states, norms.split([len(state.heads) for state in states]), strict=True))
    for state, own in by_layer.items():
        state.once(("norms", head.ports), own.clone)  # a view would keep the norms of all layers alive
    own_layer: Tensor = by_layer[head.state]
    return own_layer


def _by_position(head: HeadMap, scale: Tensor | None) -> Tensor | None:
    """Scales one for each position in float64, (H or 1, B or 1, T), ones for None; None if they differ within one."""
    if scale is None:
        return torch.ones(1, 1, head.shape[2], dtype=torch.float64, device=head.device)
    by_position = scale_by_position(scale, head.shape[2])
    return None if by_position is None else _by_head(head, by_position).double()


def _by_head(head: HeadMap, scale: Tensor) -> Tensor:
    """(H*B, n) or (1, n) as (H, B, n) or (1, 1, n)."""
    return scale.view(*head.shape[:2], -1) if len(scale) == head.batch else scale.unsqueeze(0)
