"""The four interventions: each says what is added to a node's write, position by position.

With `w_t` what the node wrote at position t, `rms_t` the root of the mean of its squares and `s` the strength, the
node is made to write `w_t + c_t`, where

    noise    c_t = s rms_t n_t            n_t standard normal: at s = 1 the noise is about as long as the write
    steer    c_t = s ||w_t|| v / ||v||    one direction for all positions; at s = 1 as long as the write
    ablate   c_t = s (m - w_t)            towards 0, or towards a mean m that is given
    patch    c_t = s (p_t - w_t)          towards what the node wrote on another prompt

The change is a vector of the residual stream for every kind of node. So noise on a head does not lie in the range of
its `W_O`: it is what an edge would carry wrongly, not what the head could have said. What is drawn depends on the
seed, the node and the prompt's tokens only, and not on the strength: a prompt gets the same noise alone, in a batch
and padded, and a stronger dose is the same noise, longer.

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


@dataclass(frozen=True, eq=False)
class Intervention(ABC):
    """One node, how strongly, and at which token positions: `all`, `last`, or a list (from the end if negative)."""

    kind: ClassVar[str]
    node: str
    strength: float = 1.0
    at: str | Sequence[int] = "all"

    def __post_init__(self) -> None:
        strength = self.strength
        usable = isinstance(strength, Real) and not isinstance(strength, bool) and 0 <= float(strength) < math.inf
        if not usable:
            raise OptionError.of("strength", "a finite number >= 0", strength)
        object.__setattr__(self, "strength", float(strength))
        object.__setattr__(self, "at", _at(self.at))
        if Node.parse(self.node).kind not in (Kind.INPUT, Kind.HEAD, Kind.MLP):
            raise OptionError.of("node", "one that writes: input, a<layer>.h<head> or m<layer>", self.node)

    @abstractmethod
    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:
        """c at every position, (T, d)."""

    def change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:
        """What is added to a write, (T, d), of the prompt with these tokens; 0 at positions that are not named."""
        chosen = torch.zeros(len(tokens), 1, dtype=torch.bool, device=write.device)
        chosen[self.places(len(tokens))] = True
        return torch.where(chosen, self._change(write, tokens), 0.0)

    def places(self, length: int) -> list[int]:
        """The positions in a prompt of so many tokens."""
        if self.at == "all":
            return list(range(length))
        if self.at == "last":
            return [length - 1]
        wrong = [place for place in self.at if not -length <= int(place) < length]
        if wrong:
            raise PromptError(
                f"an intervention at position {wrong[0]} must lie in the prompt's {length} tokens: change its 'at'"
            )
        return [int(place) % length for place in self.at]

    def check_length(self, length: int) -> None:
        """Refuses one prompt, of so many tokens, to which this cannot be done."""
        self.places(length)

    def check_width(self, width: int) -> None:
        """Refuses what fits no prompt of a model of this width."""
        for name in ("vector", "mean", "write"):
            given = getattr(self, name, None)
            if given is not None and given.shape[-1] != width:
                raise OptionError.of(name, f"{width} numbers, the model's width", f"{given.shape[-1]} numbers")

    def to_record(self) -> dict[str, Any]:
        """What records say of it: JSON types only, no vectors."""
        found: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, Tensor):
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


@dataclass(frozen=True, eq=False)
class _Added(Intervention):
    """Adds a vector that does not come from the write. Its length at strength 1 is the write's own, position by
    position; or `norms`, (T,), those of the node `like`, which then also names the random stream: the very same vector
    at another place."""

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
    vector: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vector is not None:
            object.__setattr__(self, "vector", _numbers("vector", self.vector, (1,)))
            if not bool(self.vector.any()):
                raise OptionError.of("vector", "a direction, not all zeros", self.vector.tolist())

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:  # noqa: ARG002 - for noise, which goes by prompt
        vector = self._draw(1, write.shape[1], "direction") if self.vector is None else self.vector
        direction: Tensor = vector.double() / torch.linalg.vector_norm(vector.double())
        return self.strength * self._norms(write) * direction.reshape(1, -1).to(write)


@dataclass(frozen=True, eq=False)
class _Towards(Intervention):
    """Goes part of the way to another write; strength 1 arrives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength > 1:
            raise OptionError.of("strength", f"at most 1 to {self.kind}: 1 goes all the way", self.strength)


@dataclass(frozen=True, eq=False)
class Ablate(_Towards):
    """Towards zero, or towards `mean`: d numbers."""

    kind: ClassVar[str] = "ablate"
    mean: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean is not None:
            object.__setattr__(self, "mean", _numbers("mean", self.mean, (1,)))

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:  # noqa: ARG002
        aim = torch.zeros_like(write) if self.mean is None else self.mean.to(write)
        return self.strength * (aim - write)


@dataclass(frozen=True, eq=False)
class Patch(_Towards):
    """Towards what the node wrote on another `prompt` (text, or `tokens`) of as many tokens; with `at="last"` of any
    number: the last position takes the last. `write` gives that activation itself, (T, d)."""

    kind: ClassVar[str] = "patch"
    prompt: str | None = None
    tokens: Sequence[int] | None = None
    write: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise OptionError.of("prompt", "text; token ids go into 'tokens'", self.prompt)
        if self.tokens is not None:
            object.__setattr__(self, "tokens", tuple(self.tokens))
        if self.write is not None:
            object.__setattr__(self, "write", _numbers("write", self.write, (2,)))
        if self.prompt is None and self.tokens is None and self.write is None:
            raise OptionError.of("prompt", "the other prompt of a patch (or its 'tokens', or the 'write' itself)", None)

    def check_length(self, length: int) -> None:
        """The other prompt must have as many tokens, unless only the last position is taken."""
        super().check_length(length)
        other = len(self.tokens or ()) if self.write is None else len(self.write)
        if self.at != "last" and other != length:
            raise PromptError(
                f"a patch needs another prompt of as many tokens; this has {length}, the other {other}: take one of "
                "that length, or at='last'"
            )

    def _change(self, write: Tensor, tokens: Sequence[int]) -> Tensor:  # noqa: ARG002
        assert self.write is not None
        aim = self.write[-1:] if self.at == "last" else self.write
        return self.strength * (aim.to(write) - write)


KINDS: dict[str, type[Intervention]] = {kind.kind: kind for kind in (Noise, Ablate, Patch, Steer)}


def as_interventions(given: Any) -> tuple[Intervention, ...]:
    """Interventions, or objects such as `{"kind": "noise", "node": "m3", "strength": 0.5}`; one alone, or several.

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
    known = {field.name for field in fields(kind)}
    wrong = [name for name in item if name != "kind" and name not in known]
    if wrong or "node" not in item:
        must = f"a {kind.kind} with 'node' and perhaps {', '.join(sorted(known - {'node'}))}"
        raise OptionError.of("interventions", must, dict(item))
    return kind(**{name: value for name, value in item.items() if name != "kind"})


def _at(at: Any) -> str | tuple[int, ...]:
    if isinstance(at, str) and at in ("all", "last"):
        return at
    listed = isinstance(at, Iterable) and not isinstance(at, str)
    places = tuple(at) if listed else ()
    if not places or not all(isinstance(place, Integral) and not isinstance(place, bool) for place in places):
        raise OptionError.of("at", "'all', 'last' or a list of token positions", at)
    return tuple(int(place) for place in places)


def _numbers(name: str, given: Any, axes: tuple[int, ...]) -> Tensor:
    try:
        found = torch.as_tensor(given, dtype=None if isinstance(given, Tensor) else torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.ndim not in axes or not found.numel() or not bool(found.isfinite().all()):
        raise OptionError.of(name, "a list of finite numbers", given)
    return found
