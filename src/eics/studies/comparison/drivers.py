"""Who is in memory when: both models at once, or one after the other with activations on disk; the numbers are equal.

`Together` runs both models on each batch and keeps one pass's activations. `Apart` loads A, B and A again: every run
is written to disk while its model is there, and read where the other one needs it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eics.models.base import Model
from eics.studies.comparison.attribution import HeadOutputs
from eics.studies.comparison.batches import Item, Outcome, Step
from eics.studies.comparison.passes import Tensors

Batches = Sequence[Sequence[Item]]
Effects = dict[str, list[float]]


class Driver(Protocol):
    """Runs batches in both models."""

    def outcomes(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Outcome]]:
        """Made here, inherited and effect, batch by batch."""

    def restored(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Effects]]:
        """The true effect of each part of the step, batch by batch."""


@dataclass(frozen=True)
class Together:
    """Both models in memory."""

    model: Model
    against: Model

    def outcomes(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Outcome]]:
        for batch in batches:
            ours = step.ours(self.model, batch)
            theirs = _to(step.theirs(self.against, batch, ours["logits"]), self.model)
            outputs = _moved(HeadOutputs.of(self.against, step.parts), self.model.device)
            yield batch, step.outcome(self.model, batch, ours, theirs, outputs)

    def restored(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Effects]]:
        for batch in batches:
            ours, theirs = step.ours(self.model, batch), step.reread(self.against, batch)
            outputs = _moved(HeadOutputs.of(self.against, step.parts), self.model.device)
            restorations = step.restorations(self.model, ours, _to(theirs, self.model), outputs)
            yield batch, step.restored(self.against, batch, ours["logits"], theirs["logits"], restorations)


@dataclass(frozen=True)
class Apart:
    """One model in memory at a time; `folder` holds the activations in between."""

    load: Callable[[], Model]
    load_against: Callable[[], Model]
    folder: Path

    def outcomes(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Outcome]]:
        self._run_ours(step, batches)
        outputs = self._run_theirs(step, batches, gradients=True)
        model = self.load()
        outputs = _moved(outputs, model.device)
        for number, batch in enumerate(batches):
            ours, theirs = (self._take(name, number, model) for name in ("ours", "theirs"))
            yield batch, step.outcome(model, batch, ours, theirs, outputs)

    def restored(self, step: Step, batches: Batches) -> Iterator[tuple[Sequence[Item], Effects]]:
        self._run_ours(step, batches)
        self._compute_restorations(step, batches, self._run_theirs(step, batches, gradients=False))
        against = self.load_against()
        for number, batch in enumerate(batches):
            restorations, logits = (self._take(name, number, against) for name in ("restorations", "logits"))
            yield batch, step.restored(against, batch, logits["ours"], logits["theirs"], restorations)

    # A model is gone when the method that loaded it returns: the next one finds its memory free.

    def _run_ours(self, step: Step, batches: Batches) -> None:
        model = self.load()
        for number, batch in enumerate(batches):
            self._keep("ours", number, step.ours(model, batch))

    def _run_theirs(self, step: Step, batches: Batches, *, gradients: bool) -> dict[int, HeadOutputs]:
        """B's runs, on disk; returns what its heads write through."""
        against = self.load_against()
        for number, batch in enumerate(batches):
            logits = self._tensor("ours", number, "logits")
            run = step.theirs(against, batch, logits) if gradients else step.reread(against, batch)
            self._keep("theirs", number, run)
        return {layer: one.copied() for layer, one in HeadOutputs.of(against, step.parts).items()}

    def _compute_restorations(self, step: Step, batches: Batches, outputs: Mapping[int, HeadOutputs]) -> None:
        model = self.load()
        outputs = _moved(outputs, model.device)
        for number, _ in enumerate(batches):
            ours, theirs = (self._take(name, number, model) for name in ("ours", "theirs"))
            self._keep("restorations", number, step.restorations(model, ours, theirs, outputs))
            self._keep("logits", number, {"ours": ours["logits"], "theirs": theirs["logits"]})

    def _file(self, name: str, number: int) -> Path:
        return self.folder / f"{name}-{number}.safetensors"

    def _keep(self, name: str, number: int, tensors: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save_file

        copies = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        save_file(copies, self._file(name, number))

    def _take(self, name: str, number: int, model: Model) -> Tensors:
        """The tensors of a batch, which are read once."""
        from safetensors.torch import load_file

        file = self._file(name, number)
        tensors = load_file(file, device=str(model.device))
        file.unlink()
        return _to(tensors, model)

    def _tensor(self, name: str, number: int, key: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._file(name, number), framework="pt") as file:
            tensor: Tensor = file.get_tensor(key)
        return tensor


def _moved(outputs: Mapping[int, HeadOutputs], device: torch.device) -> dict[int, HeadOutputs]:
    return {layer: one.to(device) for layer, one in outputs.items()}


def _to(tensors: Tensors, model: Model) -> Tensors:
    """On the device of a model and, where they are not yes or no, in its working dtype."""
    device, dtype = model.device, model.dtype
    return {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
