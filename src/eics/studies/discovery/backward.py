"""One transposed sweep through the whole model: the metric's gradient at what every node reads, port by port.

With g the gradient at the residual stream, a node's write has cotangent g and its reads get `J^T g`, which joins the
stream below it. So a backward pass made of the score's own operators gives, for every reader at once, what edge
attribution needs. Under `frozen` the maps are the held ones, and the gradient is that of the affine model.

The norm after a layer's heads (Gemma) belongs to no head alone: the sweep goes through its own Jacobian, so that the
gradient is the model's, where the score's maps of single heads hold its denominator.
"""

from collections.abc import Iterator

from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.transformer.attention import AttentionState
from eics.transformer.forward import ForwardState
from eics.transformer.head import HeadMap
from eics.transformer.mlp import MLPMap
from eics.transformer.norm import NormMap
from eics.transformer.readout import ReadoutMap


def gradients(state: ForwardState, slope: Tensor, frozen: bool) -> Iterator[tuple[int, str, list[int], Tensor]]:
    """Yields, from the top down, `(layer, port, heads, gradient)` with gradients (R, B, T, d) at what R readers read.

    `slope` is the metric's gradient by the logits, (B, V). The read-out comes as port `logits`, an MLP as `m`, heads as
    `q`, `k`, `v`, in chunks that stay under the memory bound; under `frozen` queries and keys have none.
    """
    spec = state.model.transformer
    assert state.final_read is not None
    readout = ReadoutMap(spec, state.final_read, state.answer, "logits", None, frozen)
    stream = readout.rmv(slope.unsqueeze(2)).view_as(state.final_read)
    yield len(spec.blocks), "logits", [], stream.unsqueeze(0)
    for layer in reversed(range(len(spec.blocks))):
        block = spec.blocks[layer]
        mlp = MLPMap(block.mlp, state.mlp_reads[layer], frozen)
        by_mlp = mlp.rmv(stream.flatten(1).unsqueeze(2)).view_as(stream)
        yield layer, "m", [], by_mlp.unsqueeze(0)
        above = stream if block.parallel else stream + by_mlp
        stream = stream + by_mlp
        for port, heads, back in _by_head(state, layer, above, frozen):
            yield layer, port, heads, back
            stream = stream + back.sum(dim=0)


def _by_head(
    state: ForwardState, layer: int, cotangent: Tensor, frozen: bool
) -> Iterator[tuple[str, list[int], Tensor]]:
    spec = state.model.transformer.blocks[layer].attention
    batch, length, width = cotangent.shape
    if spec.post_norm is not None:
        cotangent = NormMap.at(spec.post_norm, state.summed[layer], frozen).rmv(cotangent.unsqueeze(1)).squeeze(1)
    chunk = chunk_width(batch * length * max(2 * width, 4 * length), cotangent.dtype)
    for start in range(0, spec.heads, chunk):
        heads = list(range(start, min(start + chunk, spec.heads)))
        rotation = state.rotations.get(layer)
        attention = AttentionState(spec, state.attention_reads[layer], rotation, None, frozen, heads)
        for port, back in HeadMap(attention, range(len(heads)), None).ports_back(cotangent):
            yield port, heads, back
