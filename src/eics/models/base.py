"""The adapted model that everything else uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import torch

from eics.circuits.file_graph import ModelShape
from eics.circuits.graph import Circuit, check_kind
from eics.errors import ModelError
from eics.models.families.adapter import Adapter
from eics.models.spec import Transformer
from eics.models.watch import Watch, watch_of
from eics.models.weight_cache import WeightCache


@dataclass
class _Reading:
    """The weights as they were last read.

    Attributes:
        generation, proven: the generations (`watch.py`) of the reading and of the adapter's proof.
        full_next: whether the next look has to compare every weight.
    """

    transformer: Transformer | None = None
    generation: int = -1
    proven: int = -1
    full_next: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A transformers model with its adapter and, perhaps, a tokenizer; `name` is what records call it.

    Every forward pass of ours first calls `refresh`: scores are those of the weights of the moment, however they were
    changed. `checked` says that the adapter was proven on the model, and has to be again if a module is replaced.
    """

    module: Any
    adapter: Adapter
    tokenizer: Any = None
    name: str | None = None
    checked: bool = False
    _reading: _Reading = field(default_factory=_Reading, init=False, repr=False)

    @property
    def transformer(self) -> Transformer:
        """The model's weights, in a form that is the same for every family."""
        reading = self._reading
        if reading.transformer is None:
            watch = watch_of(self.module)
            reading.generation = watch.look(self.module)
            if reading.proven < 0:
                reading.proven = watch.structure
            reading.transformer = self._read(watch)
        return reading.transformer

    def refresh(self, *, full: bool = False) -> bool:
        """Forgets all that was computed from weights that have changed since; returns whether any have.

        You need not call this before a score, which does. `full` compares every element of every weight that went into
        a fingerprint; `eics.models.watch` says what is noticed without it.
        """
        full, self._reading.full_next = full or self._reading.full_next, False
        return self._look(full=full)

    def fingerprint(self) -> str:
        """SHA-256 of the config and the weights of the moment (`eics.models.fingerprint`); reads every weight."""
        self.refresh(full=True)
        return self.last_fingerprint

    @property
    def last_fingerprint(self) -> str:
        """The fingerprint of the weights as the last pass found them; computed once for each change."""
        return watch_of(self.module).fingerprint(self.module)

    @property
    def unproven(self) -> str | None:
        """The dotted name of what was replaced since the adapter was proven, or None."""
        watch = watch_of(self.module)
        return watch.replaced if self.checked and watch.structure > self._reading.proven else None

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Around a proof of the adapter on the model as it is now; if it fails, the model stays unproven."""
        before, self._reading.proven = self._reading.proven, watch_of(self.module).structure
        try:
            yield
        except BaseException:
            self._reading.proven = before
            raise

    @property
    def dtype(self) -> torch.dtype:
        """The working precision: the model's own, but at least float32."""
        own = self.transformer.unembed.dtype
        return own if own.itemsize >= 4 else torch.float32

    @property
    def device(self) -> torch.device:
        return self.transformer.unembed.device

    @property
    def context(self) -> int | None:
        """The longest prompt that the model takes, if its config says so."""
        return getattr(self.module.config, "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.transformer.unembed.shape[0]

    @cached_property
    def _token_texts(self) -> dict[int, str]:
        return {}

    def token_text(self, token: int) -> str | None:
        """A token as text, or None without a tokenizer that decodes; decoded once, since that takes a while."""
        decode = getattr(self.tokenizer, "decode", None)
        if decode is None:
            return None
        if token not in self._token_texts:
            self._token_texts[token] = str(decode([token]))
        return self._token_texts[token]

    @property
    def shape(self) -> ModelShape:
        """The numbers of layers and heads, and whether attention and MLP of a layer run in parallel."""
        blocks = self.transformer.blocks
        return ModelShape(len(blocks), blocks[0].attention.heads, blocks[0].parallel, self.transformer.width)

    def __repr__(self) -> str:
        shape, dtype = self.shape, str(self.transformer.unembed.dtype).removeprefix("torch.")
        size = f"{shape.n_layers} layers of {shape.n_heads} heads, width {shape.d_model}"
        return f"Model({self.name}: {type(self.module).__name__}, {size}, {dtype} on {self.device})"

    def check_circuit(self, circuit: Circuit) -> None:
        """Refuses a circuit with nodes or edges that the model does not have. Every score begins with this."""
        check_kind(circuit)
        self._look(values=False)
        self._reading.full_next = self.device.type == "cpu"  # a GPU takes longer to launch a sum for each tensor
        self.shape.check(circuit.order, circuit.edges)

    def _look(self, **how: bool) -> bool:
        reading = self._reading
        if reading.transformer is None:
            return False  # nothing was read yet
        changed = watch_of(self.module).look(self.module, **how) != reading.generation
        if changed:
            reading.transformer = None
        return changed

    def _read(self, watch: Watch) -> Transformer:
        try:
            transformer = self.adapter.transformer(self.module)
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            family, name = self.module.config.model_type, watch.replaced
            replaced = f" {name} was replaced: put back a module of the family." if name else ""
            raise ModelError(f"The model must have the modules of {family}. It has not: {error}.{replaced}") from None
        watch.depend_on(weight for weight in _parts(transformer, torch.Tensor) if watch.is_copy(weight))
        for cache in _parts(transformer, WeightCache):
            cache.watch = watch
        return transformer


def _parts(spec: Any, kind: type) -> list[Any]:
    """All the parts of a description that are of this kind."""
    if isinstance(spec, kind):
        return [spec]
    if isinstance(spec, tuple):
        return [part for item in spec for part in _parts(item, kind)]
    if is_dataclass(spec) and not isinstance(spec, type):
        return [part for f in fields(spec) for part in _parts(getattr(spec, f.name), kind)]
    return []
