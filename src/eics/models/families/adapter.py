"""The base of every family: where its modules are, and how they become the fields of `models/spec.py`.

A family declares what differs from Llama, the default: the names of its modules, the kind of norm, and how queries,
keys, values and the MLP are stored (pieces in `weights.py`). `check_adapter` (`transformer/check.py`) then proves the
declaration.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from eics.models.families.weights import Linear, activation, gated_mlp, linear, output_heads, rms_norm, separate_heads
from eics.models.spec import MLP, Attention, Block, Norm, Transformer


@dataclass(frozen=True)
class Modules:
    """Dotted names of a family's modules; the first two start at the model, the others at one of its layers.

    Attributes:
        layers, final_norm: the list of layers, and the norm before the unembedding.
        attention_norm, mlp_norm: what the heads and the MLP read through; the same name if they share one.
        attention, mlp: the two halves of a layer.
        out_proj: the attention's output projection.
        attention_post_norm, mlp_post_norm: norms applied to an output before it joins the residual stream, or None.
        mlp_activation: the MLP's activation; it need not be a module, or there.
    """

    layers: str = "model.layers"
    final_norm: str = "model.norm"
    attention_norm: str = "input_layernorm"
    attention: str = "self_attn"
    out_proj: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    mlp: str = "mlp"
    attention_post_norm: str | None = None
    mlp_post_norm: str | None = None
    mlp_activation: str = "mlp.act_fn"


@dataclass(frozen=True)
class Sites:
    """The modules of one layer on which a forward pass has its hooks.

    Attributes:
        attention_norm, mlp_norm: their inputs are the residual stream that heads and MLP read.
        attention: called with `position_embeddings` if the family has rotary ones.
        out_proj: its input is the heads' z, side by side; its output is the sum of what they write.
        mlp_write: its output is what the MLP adds to the residual stream.
        attention_post_norm: the norm applied to the heads' sum before it is added, or None.
        mlp_activation: its input is what the MLP activates (of a gated one, the gate); None if that cannot be seen.
    """

    attention_norm: nn.Module
    attention: nn.Module
    out_proj: nn.Module
    mlp_norm: nn.Module
    mlp_write: nn.Module
    attention_post_norm: nn.Module | None = None
    mlp_activation: nn.Module | None = None


class Adapter:
    """Translates one family's modules into a `Transformer`.

    Attributes:
        model_types: the values of `config.model_type` that it serves.
        modules: where the modules are.
        norm: turns a norm module into weights.
        linear: turns a linear module into weights; `conv1d` if they are stored transposed.
        activation: the field of the config that names the MLP's activation.
    """

    model_types: tuple[str, ...]
    modules = Modules()
    norm: Callable[[Any], Norm] = staticmethod(rms_norm)
    linear: Callable[[Any], Linear] = staticmethod(linear)
    activation = "hidden_act"

    def projections(self, attention: Any, heads: int, groups: int) -> dict[str, Tensor | None]:
        """`w_q`, `w_k`, `w_v` and their biases, cut by head."""
        projections = (self.linear(getattr(attention, f"{port}_proj")) for port in "qkv")
        return separate_heads(projections, heads, groups)

    def mlp_weights(self, mlp: Any) -> dict[str, Tensor | None]:
        """`w_in`, `w_out`, `w_gate` if the MLP is gated, and their biases."""
        return gated_mlp(self.linear(mlp.gate_proj), self.linear(mlp.up_proj), self.linear(mlp.down_proj))

    def window(self, config: Any, attention: Any) -> int | None:
        """How far back this layer sees; `layer_types` names the sliding layers if only some slide."""
        types = getattr(config, "layer_types", None)
        slides = types is None or types[attention.layer_idx] == "sliding_attention"
        return getattr(config, "sliding_window", None) if slides else None

    def softcap(self, config: Any, attention: Any) -> float | None:  # noqa: ARG002 - for families that have one
        """The cap on attention scores."""
        return None

    def parallel(self, layer: Any) -> bool:  # noqa: ARG002 - for families that say
        """Whether attention and MLP of a layer read the same residual stream."""
        return False

    def layers(self, model: Any) -> list[nn.Module]:
        """The layers, in order."""
        return list(attrgetter(self.modules.layers)(model))

    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """The norm before the unembedding: module and weights."""
        module = attrgetter(self.modules.final_norm)(model)
        return module, self.norm(module)

    def sites(self, layer: Any) -> Sites:
        """The modules of a layer on which a forward pass has its hooks."""
        names, post_norm = self.modules, self.modules.attention_post_norm
        same = ("attention_norm", "attention", "out_proj", "mlp_norm")
        return Sites(
            **{name: attrgetter(getattr(names, name))(layer) for name in same},
            mlp_write=attrgetter(names.mlp_post_norm or names.mlp)(layer),
            attention_post_norm=attrgetter(post_norm)(layer) if post_norm else None,
            mlp_activation=_module_at(layer, names.mlp_activation),
        )

    def transformer(self, model: Any) -> Transformer:
        """The weights of the whole model, without gradients."""
        config, head = model.config, model.get_output_embeddings()
        whole = Transformer(
            blocks=tuple(
                Block(self._attention(config, layer), self._mlp(config, layer), self.parallel(layer))
                for layer in self.layers(model)
            ),
            final_norm=self.final_norm(model)[1],
            unembed=head.weight,
            unembed_bias=getattr(head, "bias", None),
            logit_softcap=getattr(config, "final_logit_softcapping", None),
        )
        detached: Transformer = _detached(whole)
        return detached

    def _attention(self, config: Any, layer: Any) -> Attention:
        attention = attrgetter(self.modules.attention)(layer)
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        weights: dict[str, Any] = self.projections(attention, heads, groups)
        weights |= output_heads(self.linear(attrgetter(self.modules.out_proj)(layer)), heads)
        for name in ("q_norm", "k_norm"):
            if hasattr(attention, name):
                weights[name] = self.norm(getattr(attention, name))
        return Attention(
            norm=self.norm(attrgetter(self.modules.attention_norm)(layer)),
            scale=attention.scaling,
            softcap=self.softcap(config, attention),
            window=self.window(config, attention),
            post_norm=self._post_norm_at(layer, self.modules.attention_post_norm),
            **weights,
        )

    def _mlp(self, config: Any, layer: Any) -> MLP:
        weights: dict[str, Any] = self.mlp_weights(attrgetter(self.modules.mlp)(layer))
        return MLP(
            norm=self.norm(attrgetter(self.modules.mlp_norm)(layer)),
            activation=activation(getattr(config, self.activation)),
            post_norm=self._post_norm_at(layer, self.modules.mlp_post_norm),
            **weights,
        )

    def _post_norm_at(self, layer: Any, name: str | None) -> Norm | None:
        return self.norm(attrgetter(name)(layer)) if name else None


def _module_at(layer: Any, name: str) -> nn.Module | None:
    """The module of this dotted name, if there is one."""
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer if isinstance(layer, nn.Module) else None


def _detached(spec: Any) -> Any:
    """The same weights without gradients: everything that follows is linear algebra, not training."""
    if isinstance(spec, Tensor):
        return spec.detach()
    if isinstance(spec, tuple):
        return tuple(_detached(part) for part in spec)
    if is_dataclass(spec) and not isinstance(spec, type):
        return replace(spec, **{f.name: _detached(getattr(spec, f.name)) for f in fields(spec)})
    return spec
