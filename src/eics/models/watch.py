"""Whether a model's weights are still those that were read from it.

Almost every edit leaves a trace on the host: a replaced module, parameter or buffer is another object, `.to()` and
`parameter.data = ...` move a tensor, and an optimizer step, `load_state_dict` or an in-place edit raises its version.
Edits through `.data` raise nothing, so every forward pass also compares values (`bits.py`):

- of every tensor, a strided sample with an element in each row and in each column, and vectors whole. This notices
  pruned neurons and heads, swapped rows, merged adapters, rounded weights;
- of every tensor that a cached matrix was made of, the sum of its bits, which any single element changes.

All other weights are read afresh in every pass, so scores are those of the weights of the moment. For the sake of the
fingerprint, the first pass of every call on a CPU compares the sums of all tensors; on a GPU, where launching so many
sums would cost more, `look(full=True)` does. What can pass unnoticed are edits through `.data` of several elements of
one tensor, none of them in the sample, that cancel in the sum of its bits to the last digit. All of this costs one or
two percent of the score of a batch of short prompts.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from eics.models.bits import Samples, bit_sum, same_bits, stamp
from eics.models.fingerprint import fingerprint, weights_of

_watches: "WeakKeyDictionary[nn.Module, Watch]" = WeakKeyDictionary()


def watch_of(module: nn.Module) -> "Watch":
    """The one watch of a module, shared by everything that adapts it."""
    watch = _watches.get(module)
    if watch is None:
        watch = _watches[module] = Watch(module)
    return watch


class Watch:
    """The state of a module's weights when they were last read.

    Attributes:
        generation: how many changes were noticed; what was computed from the weights belongs to one generation.
        structure: the generation in which a module, a parameter or a setting was last replaced.
        replaced: the dotted name of what was replaced then.
    """

    _tensors: dict[str, Tensor]
    _matrices: list[str]
    _by_memory: dict[int, list[str]]
    _sums: dict[str, Tensor]
    _fingerprinted: dict[str, Tensor]
    _fingerprint: str | None

    def __init__(self, module: nn.Module) -> None:
        self.generation = self.structure = 0
        self.replaced: str | None = None
        self._read(module)

    def look(self, module: nn.Module, *, values: bool = True, full: bool = False) -> int:
        """Compares, notes a change, and returns the generation.

        Without `values` only the traces on the host are compared; with `full`, where a fingerprint was taken, every
        element that went into it.
        """
        replaced = self._links.broken(module)
        moved = replaced is not None or self._stamps != [stamp(tensor) for tensor in self._tensors.values()]
        if moved or (values and self._edited(self._fingerprinted if full else {})):
            self.generation += 1
            if replaced is not None:
                self.structure, self.replaced = self.generation, replaced
            self._read(module)
        return self.generation

    def depend_on(self, weights: Iterable[Tensor]) -> None:
        """From now on the bits of these tensors, views of the module's own, are summed in every pass.

        A matrix that shares no memory with the module was computed from its tensors, whichever they are: all are
        summed. Vectors are in the sample.
        """
        for weight in weights:
            for name in self._by_memory.get(weight.untyped_storage().data_ptr(), self._matrices):
                if name not in self._sums and weight.ndim > 1:
                    self._sums[name] = bit_sum(self._tensors[name])

    def is_copy(self, weight: Tensor) -> bool:
        """Whether a tensor shares no memory with the module's own."""
        return weight.untyped_storage().data_ptr() not in self._by_memory

    def fingerprint(self, module: nn.Module) -> str:
        """The fingerprint of this generation, computed once."""
        if self._fingerprint is None:
            self._fingerprinted = {name: bit_sum(self._tensors[name]) for name in self._matrices}
            self._fingerprint = fingerprint(module)
        return self._fingerprint

    def _edited(self, more: dict[str, Tensor]) -> bool:
        """Whether a sample or a sum has changed; one synchronisation with each device."""
        sums = [(bit_sum(self._tensors[name]), before) for name, before in (self._sums | more).items()]
        return not same_bits([*self._samples.pairs(), *sums])

    def _read(self, module: nn.Module) -> None:
        _apply_pruning(module)
        self._links = _Links(module)
        self._tensors = dict(weights_of(module))
        self._stamps = [stamp(tensor) for tensor in self._tensors.values()]
        self._samples = Samples(list(self._tensors.values()))
        self._sums, self._fingerprinted, self._fingerprint = {}, {}, None
        self._matrices = [name for name, tensor in self._tensors.items() if tensor.ndim > 1]
        self._by_memory = {tensor.untyped_storage().data_ptr(): [] for tensor in self._tensors.values()}
        for name in self._matrices:
            self._by_memory[self._tensors[name].untyped_storage().data_ptr()].append(name)


class _Links:
    """What hangs where in a tree of modules: submodules, parameters, buffers of a checkpoint, numbers, the config."""

    def __init__(self, module: nn.Module) -> None:
        self.sizes: list[tuple[dict[str, Any], int, str]] = []
        self.objects: list[tuple[dict[str, Any], str, object, str]] = []
        self.numbers: list[tuple[dict[str, Any], str, float, str]] = []
        self.config = deepcopy(_config(module))  # its tables are edited in place
        for prefix, part in module.named_modules():
            buffers = {k: b for k, b in part._buffers.items() if k not in part._non_persistent_buffers_set}
            for owner, held in (
                (part._modules, part._modules),
                (part._parameters, part._parameters),
                (part._buffers, buffers),
            ):
                self.sizes.append((owner, len(owner), prefix))
                self.objects += [(owner, key, value, _dotted(prefix, key)) for key, value in held.items()]
            attributes = vars(part)
            floats = {key: value for key, value in attributes.items() if isinstance(value, float)}
            self.numbers += [(attributes, key, value, _dotted(prefix, key)) for key, value in floats.items()]

    def broken(self, module: nn.Module) -> str | None:
        """The dotted name of the first that is another one now, or None."""
        for owner, key, value, name in self.objects:
            if owner.get(key) is not value:
                return name
        for owner, size, name in self.sizes:
            if len(owner) != size:
                return name
        for owner, key, number, name in self.numbers:
            if (now := owner.get(key)) is not number and now != number:  # NaN is not equal to itself
                return name
        return None if self.config == _config(module) else "config"


def _config(module: nn.Module) -> dict[str, Any]:
    return vars(module.config) if hasattr(module, "config") else {}


def _dotted(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _apply_pruning(module: nn.Module) -> None:
    """Brings pruned weights up to date: torch multiplies weight and mask in a hook, so only when the module runs."""
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                hook(part, None)
