"""What a decoder-only transformer is made of, as far as the score is concerned: weights and a few numbers.

An adapter (`families/`) translates a family's modules into these; everything after reads only these. Weights keep the
orientation of `torch.nn.Linear`, (out, in), and are views of the model's own parameters wherever possible.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from eics.models.weight_cache import WeightCache


@dataclass(frozen=True)
class Norm:
    """`weight * c / sqrt(mean(c^2) + eps) + bias` with c = x, or c = x - mean(x) if `centred` (LayerNorm)."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    centred: bool


@dataclass(frozen=True)
class Attention:
    """One layer's attention; H query heads, G key/value heads, head width e.

    Attributes:
        norm: what the heads read through.
        w_q, w_k, w_v: (H, e, d), (G, e, d), (G, e, d). b_q, b_k, b_v: (H, e), (G, e), (G, e), or None.
        w_o: what each head writes through, (H, d, e). b_o: (d,), or None; belongs to no head.
        q_norm, k_norm: norms of single queries and keys, or None.
        scale: of the scores. softcap: `cap * tanh(score / cap)`, or None. window: how far back a query sees, or None.
        post_norm: applied to the sum of the heads' outputs before it is added, or None.
    """

    norm: Norm
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    scale: float
    b_q: Tensor | None = None
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    softcap: float | None = None
    window: int | None = None
    post_norm: Norm | None = None
    cache: WeightCache = field(default_factory=WeightCache, compare=False, repr=False)

    @property
    def heads(self) -> int:
        """How many query heads."""
        return self.w_q.shape[0]

    @property
    def head_width(self) -> int:
        """e, the numbers of one head at one position."""
        return self.w_o.shape[2]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """What the cached matrices depend on."""
        return (self.w_q, self.w_k, self.w_v, self.w_o, self.norm.weight)

    def group(self, head: int) -> int:
        """The key/value head that a query head uses."""
        return head // (self.heads // self.w_k.shape[0])


@dataclass(frozen=True)
class MLP:
    """`w_out act(w_in n + b_in) + b_out`, or gated: `w_out (act(w_gate n + b_gate) * (w_in n + b_in)) + b_out`."""

    norm: Norm
    w_in: Tensor
    w_out: Tensor
    activation: Callable[[Tensor], Tensor]
    b_in: Tensor | None = None
    b_out: Tensor | None = None
    w_gate: Tensor | None = None
    b_gate: Tensor | None = None
    post_norm: Norm | None = None
    cache: WeightCache = field(default_factory=WeightCache, compare=False, repr=False)


@dataclass(frozen=True)
class Block:
    """A layer. If it is `parallel`, the MLP reads what the attention reads, not what it wrote."""

    attention: Attention
    mlp: MLP
    parallel: bool = False


@dataclass(frozen=True)
class Transformer:
    """The whole model after its embeddings."""

    blocks: tuple[Block, ...]
    final_norm: Norm
    unembed: Tensor
    unembed_bias: Tensor | None = None
    logit_softcap: float | None = None
    cache: WeightCache = field(default_factory=WeightCache, compare=False, repr=False)

    @property
    def width(self) -> int:
        """d, the width of the residual stream."""
        return self.unembed.shape[1]
