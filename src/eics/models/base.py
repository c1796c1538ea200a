"""The adapted model that everything else uses."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from eics.circuits.file_graph import ModelShape
from eics.circuits.graph import Circuit
from eics.models.families.adapter import Adapter
from eics.models.spec import Transformer


@dataclass(frozen=True, eq=False)
class Model:
    """A transformers model with its adapter and, perhaps, a tokenizer; `name` is what records call it."""

    module: Any
    adapter: Adapter
    tokenizer: Any = None
    name: str | None = None

    @cached_property
    def transformer(self) -> Transformer:
        """The model's weights, in a form that is the same for every family."""
        return self.adapter.transformer(self.module)

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
    def shape(self) -> ModelShape:
        """The numbers of layers and heads, and whether attention and MLP of a layer run in parallel."""
        blocks = self.transformer.blocks
        return ModelShape(len(blocks), blocks[0].attention.heads, blocks[0].parallel, self.transformer.width)

    def check_circuit(self, circuit: Circuit) -> None:
        """Refuses a circuit with nodes or edges that the model does not have."""
        self.shape.check(circuit.order, circuit.edges)
