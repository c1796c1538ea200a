"""The adapted model that everything else uses."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import CircuitError
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

    def check_node(self, name: str) -> None:
        """Refuses a node that the model does not have."""
        blocks, node = self.transformer.blocks, Node.parse(name)
        if node.kind is Kind.OTHER:
            raise CircuitError(f"Nodes of a model are input, a<layer>.h<head>, m<layer>, logits. Got {name!r}.")
        if node.layer is not None and node.layer >= len(blocks):
            raise CircuitError(f"Node {name} must lie in the model's layers 0 to {len(blocks) - 1}.")
        if node.head is not None and node.head >= blocks[node.layer or 0].attention.heads:
            heads = blocks[node.layer or 0].attention.heads
            raise CircuitError(f"Node {name} must be one of the layer's heads 0 to {heads - 1}.")

    def check_circuit(self, circuit: Circuit) -> None:
        """Refuses a circuit with nodes or edges that the model does not have."""
        blocks = self.transformer.blocks
        for name in circuit.order:
            self.check_node(name)
        for edge in circuit.edges:
            source, target = Node.parse(edge.source), Node.parse(edge.target)
            same = source.layer == target.layer and target.kind is Kind.MLP and source.kind is Kind.HEAD
            if same and blocks[target.layer or 0].parallel:
                raise CircuitError(
                    f"Edge {edge} must exist in the model: its attention and MLP run in parallel, so {edge.target} "
                    f"does not read {edge.source}. Remove the edge."
                )
