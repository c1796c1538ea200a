"""Both models of a comparison: loaded, or loaded one at a time; what they have in common, and which prompts run."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.studies.comparison.batches import Item
from eics.studies.comparison.drivers import Apart, Driver, Together
from eics.studies.comparison.parts import Identity, Parts, check_comparable
from eics.studies.comparison.targets import check_targets
from eics.transformer.adapt import adapt


@dataclass(frozen=True)
class About:
    """What is known of both models before they are compared."""

    parts: Parts
    items: list[Item]
    failures: dict[str | int, str]
    names: dict[str, Any]
    settings: dict[str, Any]
    device: torch.device
    dtypes: tuple[torch.dtype, torch.dtype]
    texts: Callable[[int], str | None]


class Pair:
    """Both models: loaded, or to be loaded one at a time."""

    def __init__(
        self, model: Any, against: Any, loaders: tuple[Callable[[Any], Model], Callable[[Any], Model]], *, apart: bool
    ) -> None:
        given = (model, against)
        if apart and not all(isinstance(one, str | Path) for one in given):
            must = "False unless both models are given by path or name, so that they can be loaded one after the other"
            raise OptionError.of("one_at_a_time", must, True)
        self.apart = apart
        loads: list[Callable[[], Model]] = [partial(load, one) for load, one in zip(loaders, given, strict=True)]
        if not apart:
            pairs = zip(loads, given, strict=True)
            first, other = (load() if isinstance(one, str | Path) else adapt(one) for load, one in pairs)
            if first.module is other.module:
                raise OptionError("Two models that are compared must be two. Got the same one twice: load it again.")
            loads = [lambda: first, lambda: other]
        self._load = dict(zip(("model", "against"), loads, strict=True))

    def identify(self, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str) -> About:
        """Checks both models against each other, and the prompts against them; one model is there at a time."""
        ours, read = self._look_at_ours(circuit, prompts, metric)
        against = self._load["against"]()
        theirs = Identity.of(against)
        check_comparable(ours, theirs)
        parts, device, texts, (items, failures) = read or _read(against, circuit, prompts, metric)
        prints = {"model": ours.fingerprint, "against": theirs.fingerprint}
        dtypes = (ours.dtype, theirs.dtype)
        dtype = " and ".join(dict.fromkeys(str(one).removeprefix("torch.") for one in dtypes))
        return About(
            parts=parts,
            items=items,
            failures=failures,
            names={"model": ours.name, "against": theirs.name, "fingerprints": prints, "dtype": dtype},
            settings={"kind": "models", "fingerprints": prints, "dtype": dtype},
            device=device,
            dtypes=dtypes,
            texts=texts,
        )

    def _look_at_ours(
        self, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str
    ) -> "tuple[Identity, _Read | None]":
        """A's identity, and what it says of circuit and prompts; texts need B's tokenizer if A has none."""
        model = self._load["model"]()
        needed = model.tokenizer is None and any(prompt.tokens is None for prompt in prompts)
        return Identity.of(model), None if needed else _read(model, circuit, prompts, metric)

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """Who runs the batches."""
        if not self.apart:
            yield Together(self._load["model"](), self._load["against"]())
            return
        with tempfile.TemporaryDirectory(prefix="eics-compare-") as folder:
            yield Apart(self._load["model"], self._load["against"], Path(folder))


_Read = tuple[
    Parts, torch.device, Callable[[int], str | None], tuple[list[Item], dict[str | int, str]]
]  # parts, device, tokens as text, prompts that run and why others do not


def _read(model: Model, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str) -> _Read:
    """What a model says of the circuit and of the prompts."""
    if circuit is not None:
        model.check_circuit(circuit)
    decode = getattr(model.tokenizer, "decode", None)

    def text(token: int) -> str | None:
        return None if decode is None else str(decode([token]))

    return Parts.of(model.transformer, circuit), model.device, text, _tokenized(model, prompts, metric)


def _tokenized(model: Model, prompts: Sequence[Prompt], metric: str) -> tuple[list[Item], dict[str | int, str]]:
    items: list[Item] = []
    failures: dict[str | int, str] = {}
    for prompt in prompts:
        try:
            check_targets(metric, model, prompt)
            items.append(Item(prompt, tokenize(model, prompt)))
        except PromptError as error:
            failures[prompt.id] = str(error)
    return items, failures
