"""The parts of a model to which a change is attributed, and whether two models have the same ones.

| part | its weights |
|---|---|
| `input` | embeddings |
| `a3.h7` | queries, keys, values and output of the head, the norm that it reads through, the norm after the heads |
| `a3.bias` | the attention's output bias, if the family has one |
| `m3` | the MLP, with its norms |
| `logits` | final norm, unembedding |

A weight that several parts use (keys and values of a group, a layer's norm) counts in each of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import ModelError
from eics.models.base import Model
from eics.models.spec import Transformer

_BIAS = ".bias"


@dataclass(frozen=True)
class Parts:
    """The parts that are compared, in the order of computation.

    Attributes:
        names: all of them.
        heads: of each layer. biases, mlps: layers whose output bias, or MLP, is compared.
        input, logits: whether these are.
        whole: whether they are all parts of the model, so that they account for the whole residual stream.
    """

    names: tuple[str, ...]
    heads: dict[int, tuple[int, ...]]
    biases: tuple[int, ...]
    mlps: tuple[int, ...]
    input: bool
    logits: bool
    whole: bool

    @classmethod
    def of(cls, spec: Transformer, circuit: Circuit | None) -> "Parts":
        """The nodes of a circuit; without one, every part of the model."""
        if circuit is not None:
            return cls.named(circuit.order)
        layers = tuple(range(len(spec.blocks)))
        biases = tuple(layer for layer in layers if spec.blocks[layer].attention.b_o is not None)
        heads = {layer: tuple(range(spec.blocks[layer].attention.heads)) for layer in layers}
        return cls(tuple(_all_names(heads, biases)), heads, biases, layers, input=True, logits=True, whole=True)

    @classmethod
    def named(cls, names: Sequence[str]) -> "Parts":
        """These parts alone."""
        heads: dict[int, tuple[int, ...]] = {}
        for node in (Node.parse(name) for name in names if not name.endswith(_BIAS)):
            if node.layer is not None and node.head is not None:
                heads[node.layer] = (*heads.get(node.layer, ()), node.head)
        biases = tuple(int(name[1:].removesuffix(_BIAS)) for name in names if name.endswith(_BIAS))
        mlps = tuple(int(name[1:]) for name in names if name.startswith("m"))
        has_input, has_logits = Kind.INPUT in names, Kind.LOGITS in names
        return cls(tuple(names), heads, biases, mlps, input=has_input, logits=has_logits, whole=False)

    @property
    def attention_layers(self) -> list[int]:
        """Layers of which heads or the output bias are compared."""
        return sorted({*self.heads, *self.biases})

    @property
    def layers(self) -> list[int]:
        """Layers of which anything is compared."""
        return sorted({*self.heads, *self.biases, *self.mlps})

    @property
    def sites(self) -> tuple[str, ...]:
        """Where these parts write to the residual stream, in the order of computation."""
        listed = ["input"] if self.input else []
        for layer in self.layers:
            listed += [f"a{layer}"] if layer in self.heads or layer in self.biases else []
            listed += [f"m{layer}"] if layer in self.mlps else []
        return tuple(listed)

    @property
    def recorded(self) -> list[str] | None:
        """The nodes that a pass has to record; None for all."""
        if self.whole:
            return None
        return [name.replace(_BIAS, ".h0") for name in self.names]  # a bias is written where heads are


@dataclass(frozen=True)
class Identity:
    """What must agree before two models are compared, without the models: one of them may no longer be in memory.

    Attributes:
        name: of the model. fingerprint: of its weights.
        shape: by what it is called: architecture, numbers of layers and tokens, the shapes of all weights.
        tokens: the tokenizer's vocabulary, or None.
        dtype: of the weights.
    """

    name: str
    fingerprint: str
    shape: dict[str, Any]
    tokens: dict[str, int] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Model) -> "Identity":
        """Of a loaded model; reads every weight for its fingerprint."""
        spec = model.transformer
        shape = {
            "architecture": model.module.config.model_type,
            "number of layers": len(spec.blocks),
            "width": spec.width,
            "vocabulary size": model.vocabulary,
            **dict(_shapes(spec, "")),
        }
        vocabulary = getattr(model.tokenizer, "get_vocab", lambda: None)()
        return cls(str(model.name), model.fingerprint(), shape, vocabulary, spec.unembed.dtype)


def check_comparable(ours: Identity, theirs: Identity) -> None:
    """Refuses two models that are not of one architecture, shape, vocabulary and tokenizer, by what differs first."""
    for what in dict.fromkeys((*ours.shape, *theirs.shape)):
        own, other = ours.shape.get(what), theirs.shape.get(what)
        if own != other:
            raise ModelError(
                f"Two models that are compared must have the same {what}. {ours.name!r} has {own}, {theirs.name!r} "
                f"{other}."
            )
    if ours.tokens is None or theirs.tokens is None or ours.tokens == theirs.tokens:
        return  # a model without a tokenizer is given the tokens of the other
    token = min(ours.tokens.items() ^ theirs.tokens.items())[0]
    came = f"{token!r} is {ours.tokens.get(token, 'unknown')} to one and {theirs.tokens.get(token, 'unknown')}"
    raise ModelError(f"Two models that are compared must have the same tokenizer. They have not: {came} to the other.")


def _shapes(spec: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The shapes of all weights, field by field of the description."""
    if isinstance(spec, Tensor):
        yield f"shape of {where}", list(spec.shape)
    elif isinstance(spec, tuple):
        for index, part in enumerate(spec):
            yield from _shapes(part, f"{where} {index}".strip())
    elif is_dataclass(spec) and not isinstance(spec, type):
        for field in fields(spec):
            yield from _shapes(getattr(spec, field.name), f"{field.name} in {where}" if where else field.name)


def _all_names(heads: dict[int, tuple[int, ...]], biases: tuple[int, ...]) -> Iterator[str]:
    yield Kind.INPUT.value
    for layer, own in heads.items():
        yield from (f"a{layer}.h{head}" for head in own)
        if layer in biases:
            yield f"a{layer}.bias"
        yield f"m{layer}"
    yield Kind.LOGITS.value
