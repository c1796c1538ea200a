"""The interventions: each defines a change to what a node writes (the last: reads), position by position.

If the node writes `w_t` at position t, with root mean square `rms_t`, an intervention of strength `s` makes it write
`w_t + c_t`, where

    noise    c_t = s rms_t n_t            n_t standard normal: at s = 1 the noise is about as long as the write
    steer    c_t = s ||w_t|| v / ||v||    one direction at all positions; at s = 1 as long as the write
    ablate   c_t = s (m - w_t)            towards 0, or towards a given mean m
    patch    c_t = s (p_t - w_t)          towards what the node writes on another prompt

Patching a read leaves the node's own function intact and exchanges what it is given. What the node reads is the sum of
what its parents in the circuit write and of the rest, `x_t = sum_u a_u,t + r_t`; it reads `x_t + c_t` instead, where

    patch_read   c_t = s (r'_t - r_t)     towards the rest on another prompt

The change is a vector in the residual stream, whatever the node. So noise on a head need not lie in the range of its
`W_O`: it stands for a faulty edge, not for something the head could have written. Random draws depend on the seed, the
node and the prompt's tokens, but not on the strength: a prompt gets the same noise alone, in a batch and padded, and a
stronger dose is the same noise, longer.

>>> Noise("m3", 0.5).to_record()
{'kind': 'noise', 'node': 'm3', 'strength': 0.5, 'at': 'all', 'seed': 0}
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.errors import OptionError, PromptError
from eics.linalg.probes import generator
from eics.models.prompt_values import token_ids


@dataclass(frozen=True, eq=False)
class Intervention(ABC):
    """One node, a strength, and token positions: `all`, `last`, or a list (from the end if negative)."""

    kind: ClassVar[str]
    numeric: ClassVar[dict[str, int]] = {}
    """Fields that hold numbers, with their dimensions; the last one is the model's width."""
    changes: ClassVar[str] = "write"
    """Which side of the node is changed: what it writes, or what it reads."""

    node: str
    strength: float = 1.0
    at: str | Sequence[int] = "all"

    def __post_init__(self) -> None:
        strength = self.strength
        if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 <= float(strength) < math.inf:
            raise OptionError.of("strength", "a finite number >= 0", strength)
        object.__setattr__(self, "strength", float(strength))
        object.__setattr__(self, "at", _checked_at(self.at))
        if Node.parse(self.node).kind not in (Kind.INPUT, Kind.HEAD, Kind.MLP):
            raise OptionError.of("node", "one that writes: input, a<layer>.h<head> or m<layer>", self.node)
        for name, dimensions in self.numeric.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_tensor(name, getattr(self, name), dimensions))

    @abstractmethod
    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:
        """c at every position, (T, d)."""

    def change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:
        """What is added to the write, (T, d), of a prompt with these tokens; 0 outside the chosen positions."""
        chosen = torch.zeros(len(tokens), 1, dtype=torch.bool, device=write.device)
        chosen[self.positions(len(tokens))] = True
        return torch.where(chosen, self._change(write, tokens), 0.0)

    def positions(self, length: int) -> list[int]:
        """The chosen positions in a prompt of `length` tokens."""
        if self.at == "all":
            return list(range(length))
        if self.at == "last":
            return [length - 1]
        outside = [position for position in self.at if not -length <= int(position) < length]
        if outside:
            raise PromptError(
                f"an intervention at position {outside[0]} must lie in the prompt's {length} tokens: change its 'at'"
            )
        return [int(position) % length for position in self.at]

    def check_length(self, length: int) -> None:
        """Refuses a prompt of `length` tokens if this cannot be done to it."""
        self.positions(length)

    def check_width(self, width: int) -> None:
        """Refuses numbers that do not fit the model's width."""
        for name in self.numeric:
            given = getattr(self, name)
            if given is not None and given.shape[-1] != width:
                raise OptionError.of(name, f"{width} numbers, the model's width", f"{given.shape[-1]} numbers")

    def to_record(self) -> dict[str, Any]:
        """The intervention in a record: JSON types only, no vectors."""
        record: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, Tensor):
                record[field.name] = list(value) if isinstance(value, tuple) else value
        return record


@dataclass(frozen=True, eq=False)
class _Added(Intervention):
    """Adds a vector that is independent of the write but as long as the write at strength 1, position by position.

    For the very same vector at another node, `like` names the node whose random stream is used and `norms`, (T,), gives
    the norms of that node's write.
    """

    seed: int = 0
    like: str | None = None
    norms: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool) or self.seed < 0:
            raise OptionError.of("seed", "a whole number >= 0", self.seed)

    def _norms(self, write: Tensor) -> Tensor:
        own: Tensor = torch.linalg.vector_norm(write, dim=1, keepdim=True)
        return own if self.norms is None else self.norms.to(write).unsqueeze(1)

    def _draw(self, rows: int, width: int, purpose: str) -> Tensor:
        stream = generator(int(self.seed), f"{self.kind}:{self.like or self.node}:{purpose}")
        return torch.randn(rows, width, generator=stream, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Noise(_Added):
    """Gaussian noise, `s rms_t n_t`."""

    kind: ClassVar[str] = "noise"

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:
        rows, width = write.shape
        drawn = self._draw(rows, width, ",".join(map(str, tokens))).to(write)
        return self.strength * self._norms(write) / math.sqrt(width) * drawn


@dataclass(frozen=True, eq=False)
class Steer(_Added):
    """A steering vector of d numbers, or a random direction: the same for every prompt and position."""

    kind: ClassVar[str] = "steer"
    numeric: ClassVar[dict[str, int]] = {"vector": 1}
    vector: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vector is not None and not bool(self.vector.any()):
            raise OptionError.of("vector", "a direction, not all zeros", self.vector.tolist())

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:  # noqa: ARG002 - the same for every prompt
        vector = self._draw(1, write.shape[1], "direction") if self.vector is None else self.vector
        direction: Tensor = vector.double() / torch.linalg.vector_norm(vector.double())
        return self.strength * self._norms(write) * direction.reshape(1, -1).to(write)

    def to_record(self) -> dict[str, Any]:
        return super().to_record() | ({} if self.vector is None else {"vector": "given"})


@dataclass(frozen=True, eq=False)
class _Towards(Intervention):
    """Moves the write towards a target, (T, d), (1, d) or (d,); strength 1 arrives there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength > 1:
            raise OptionError.of("strength", f"at most 1 to {self.kind}: 1 goes all the way", self.strength)

    @abstractmethod
    def _target(self, write: Tensor) -> Tensor: ...

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:  # noqa: ARG002 - the target knows its prompt
        return self.strength * (self._target(write).to(write) - write)


@dataclass(frozen=True, eq=False)
class Ablate(_Towards):
    """Towards zero, or towards `mean`: d numbers."""

    kind: ClassVar[str] = "ablate"
    numeric: ClassVar[dict[str, int]] = {"mean": 1}
    mean: Tensor | None = None

    def _target(self, write: Tensor) -> Tensor:
        return torch.zeros_like(write) if self.mean is None else self.mean

    def to_record(self) -> dict[str, Any]:
        return super().to_record() | ({} if self.mean is None else {"mean": "given"})


@dataclass(frozen=True, eq=False)
class Donated(_Towards):
    """Towards an activation from another `prompt` (text, or `tokens`), which runs once, undamaged.

    Both prompts must have the same number of tokens, unless `at="last"`: then the last position takes what the other
    prompt's last position has.
    """

    activation: ClassVar[str]
    """The field that holds what comes from the other prompt, (T, d): filled in before the pass, or given."""
    prompt: str | None = None
    tokens: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise OptionError.of("prompt", "text; token ids go into 'tokens'", self.prompt)
        if self.tokens is not None:
            try:
                object.__setattr__(self, "tokens", token_ids(self.tokens))
            except PromptError as error:
                raise OptionError(f"The 'tokens' of a patch must be the other prompt's: {error}.") from None
        if self.prompt is None and self.tokens is None and self.donated is None:
            must = f"the other prompt of a patch (or its 'tokens', or the '{self.activation}' itself)"
            raise OptionError.of("prompt", must, None)

    @property
    def donated(self) -> Tensor | None:
        """What comes from the other prompt, if it is known."""
        known: Tensor | None = getattr(self, self.activation)
        return known

    def check_length(self, length: int) -> None:
        super().check_length(length)
        other = len(self.tokens or ()) if self.donated is None else len(self.donated)
        if self.at != "last" and other != length:
            raise PromptError(
                f"a patch needs another prompt with the same number of tokens; this has {length}, the other {other}: "
                "choose one of that length, or at='last'"
            )

    def _target(self, write: Tensor) -> Tensor:  # noqa: ARG002 - comes from another prompt
        assert self.donated is not None
        return self.donated[-1:] if self.at == "last" else self.donated


@dataclass(frozen=True, eq=False)
class Patch(Donated):
    """Activation patching: towards what the node writes on another `prompt`; `write` gives that itself, (T, d)."""

    kind: ClassVar[str] = "patch"
    numeric: ClassVar[dict[str, int]] = {"write": 2}
    activation: ClassVar[str] = "write"
    write: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PatchRead(Donated):
    """Exchanges what an MLP reads from outside the circuit for what it reads from there on another `prompt`.

    At the chosen positions the MLP reads

        x' = (donor's read - what the parents wrote on the donor) + what the parents wrote in this run

    and computes its own function of it, norm included: its write is `f_v(x')`. The residual stream that goes on is
    untouched but for that write. `parents` are the node's parents in the circuit that is scored, unless they are given
    (a node without any takes its whole read from the donor); `rest` gives the bracket itself, (T, d). Only an MLP has a
    read of its own: the heads of a layer share theirs.
    """

    kind: ClassVar[str] = "patch_read"
    numeric: ClassVar[dict[str, int]] = {"rest": 2}
    activation: ClassVar[str] = "rest"
    changes: ClassVar[str] = "read"
    parents: Sequence[str] | None = None
    rest: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if Node.parse(self.node).kind is not Kind.MLP:
            must = "an MLP, m<layer>, to patch its read: the heads of a layer share what they read"
            raise OptionError.of("node", must, self.node)
        if self.parents is not None:
            object.__setattr__(self, "parents", _checked_parents(self.parents))


KINDS: dict[str, type[Intervention]] = {kind.kind: kind for kind in (Noise, Ablate, Patch, Steer, PatchRead)}


def as_interventions(given: Any) -> tuple[Intervention, ...]:
    """Interventions from objects such as `{"kind": "noise", "node": "m3", "strength": 0.5}`; a single one or several.

    >>> as_interventions({"kind": "ablate", "node": "a1.h2"})[0].strength
    1.0
    """
    items = [given] if isinstance(given, Intervention | Mapping) else given
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise OptionError.of("interventions", "a list of interventions", given)
    return tuple(item if isinstance(item, Intervention) else _from_object(item) for item in items)


def _from_object(item: Any) -> Intervention:
    if not isinstance(item, Mapping) or item.get("kind") not in KINDS:
        raise OptionError.of("interventions", f"objects with a 'kind' of {', '.join(KINDS)}", item)
    kind = KINDS[item["kind"]]
    names = {field.name for field in fields(kind)}
    if "node" not in item or not item.keys() <= names | {"kind"}:
        must = f"a {kind.kind} with 'node' and perhaps {', '.join(sorted(names - {'node'}))}"
        raise OptionError.of("interventions", must, dict(item))
    return kind(**{name: value for name, value in item.items() if name != "kind"})


def _checked_at(at: Any) -> str | tuple[int, ...]:
    if isinstance(at, str) and at in ("all", "last"):
        return at
    listed = isinstance(at, Iterable) and not isinstance(at, str)
    positions = tuple(at) if listed else ()
    if not positions or not all(isinstance(p, Integral) and not isinstance(p, bool) for p in positions):
        raise OptionError.of("at", "'all', 'last' or a list of token positions", at)
    return tuple(int(position) for position in positions)


def _checked_parents(parents: Any) -> tuple[str, ...]:
    listed = isinstance(parents, Iterable) and not isinstance(parents, str)
    names = tuple(parents) if listed else (None,)
    if not all(isinstance(name, str) for name in names):
        raise OptionError.of("parents", "a list of nodes' names", parents)
    return tuple(dict.fromkeys(names))


def _as_tensor(name: str, given: Any, dimensions: int) -> Tensor:
    try:
        numbers = torch.as_tensor(given, dtype=None if isinstance(given, Tensor) else torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if numbers.ndim != dimensions or not numbers.numel() or not bool(numbers.isfinite().all()):
        raise OptionError.of(name, "a list of finite numbers", given)
    return numbers
