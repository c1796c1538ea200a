"""The seam: what a family's adapter gives, and the adapted model that everything else uses."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import CircuitError
from eics.models.spec import Block, Norm, Transformer


@dataclass(frozen=True)
class Sites:
    """The modules of one layer at which a forward pass is watched.

    Attributes:
        attention_norm, mlp_norm: their inputs are the residual stream that heads and MLP read.
        attention: called with `position_embeddings` where the family has rotary ones.
        out_proj: its input is the heads' z, side by side; its output their sum.
        mlp_write: its output is what the MLP adds to the residual stream.
        attention_post_norm: what the heads' sum goes through before it is added, None where it is added as it is.
    """

    attention_norm: nn.Module
    attention: nn.Module
    out_proj: nn.Module
    mlp_norm: nn.Module
    mlp_write: nn.Module
    attention_post_norm: nn.Module | None = None


class Adapter(ABC):
    """Translates one family's modules. `model_types` are the values of `config.model_type` that it knows."""

    model_types: tuple[str, ...]

    @abstractmethod
    def layers(self, model: Any) -> list[nn.Module]:
        """The layers, in order."""

    @abstractmethod
    def block(self, model: Any, layer: nn.Module) -> Block:
        """A layer's weights."""

    @abstractmethod
    def sites(self, layer: Any) -> Sites:
        """A layer's modules to watch."""

    @abstractmethod
    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """The norm before the unembedding: module and weights."""

    def transformer(self, model: Any) -> Transformer:
        """All weights."""
        head = model.get_output_embeddings()
        found: Transformer = detached(
            Transformer(
                blocks=tuple(self.block(model, layer) for layer in self.layers(model)),
                final_norm=self.final_norm(model)[1],
                unembed=head.weight,
                unembed_bias=getattr(head, "bias", None),
                logit_softcap=getattr(model.config, "final_logit_softcapping", None),
            )
        )
        return found


@dataclass(frozen=True, eq=False)
class Model:
    """A transformers model with its adapter, and a tokenizer where there is one; `name` is what records call it."""

    module: Any
    adapter: Adapter
    tokenizer: Any = None
    name: str | None = None

    @cached_property
    def transformer(self) -> Transformer:
        """The model's weights, family forgotten."""
        return self.adapter.transformer(self.module)

    @property
    def dtype(self) -> torch.dtype:
        """The working precision: the model's own, but float32 where that is narrower."""
        own = self.transformer.unembed.dtype
        return own if own.itemsize >= 4 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.transformer.unembed.device

    @property
    def context(self) -> int | None:
        """The longest prompt that it takes, where the config says so."""
        return getattr(self.module.config, "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
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


def detached(spec: Any) -> Any:
    """The same weights without their gradients: all that follows is linear algebra, not training."""
    if isinstance(spec, Tensor):
        return spec.detach()
    if isinstance(spec, tuple):
        return tuple(detached(part) for part in spec)
    if is_dataclass(spec) and not isinstance(spec, type):
        return replace(spec, **{f.name: detached(getattr(spec, f.name)) for f in fields(spec)})
    return spec


def heads_of(weight: Tensor, heads: int) -> Tensor:
    """(H*e, d) as (H, e, d)."""
    return weight.view(heads, -1, weight.shape[-1])


def separate_projections(attention: Any, config: Any) -> dict[str, Any]:
    """The weights and biases of `q_proj`, `k_proj`, `v_proj` and `o_proj`, by head; keys and values by group."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    found: dict[str, Any] = {}
    for port, count in (("q", heads), ("k", groups), ("v", groups)):
        projection = getattr(attention, f"{port}_proj")
        found |= {f"w_{port}": heads_of(projection.weight, count), f"b_{port}": head_biases(projection.bias, count)}
    return found | {"w_o": heads_out(attention.o_proj.weight, heads), "b_o": attention.o_proj.bias}


def inner_norms(attention: Any, norm: Callable[[Any], Norm]) -> dict[str, Any]:
    """The norms of single queries and keys, where the attention has them."""
    names = [f"{port}_norm" for port in "qk" if hasattr(attention, f"{port}_norm")]
    return {name: norm(getattr(attention, name)) for name in names}


def head_biases(bias: Tensor | None, heads: int) -> Tensor | None:
    """(H*e,) as (H, e)."""
    return None if bias is None else bias.view(heads, -1)


def heads_out(weight: Tensor, heads: int) -> Tensor:
    """(d, H*e) as (H, d, e)."""
    return weight.view(weight.shape[0], heads, -1).transpose(0, 1)
