"""One backward sweep through the whole model: the gradient of a metric at what every node reads, port by port.

With g the gradient at the residual stream, a node's write has cotangent g and what it read gets `J^T g`, which joins
the stream below. So a backward pass made of the score's own operators gives edge attribution all it needs, for every
reader at once. Under `frozen` the operators hold patterns, norms and gates, and the gradient is that of the affine
model.

A norm after a layer's heads (Gemma) belongs to no single head. The sweep uses its full Jacobian, so that the gradient
is the model's, whereas the score's map of a single head holds the norm's denominator.
"""

from collections.abc import Iterator

from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.studies.discovery.full_graph import FullGraph
from eics.transformer.attention import AttentionState
from eics.transformer.forward import ForwardState
from eics.transformer.head import HeadMap
from eics.transformer.mlp import MLPMap
from eics.transformer.norm import NormMap
from eics.transformer.readout import ReadoutMap


def gradients(state: ForwardState, graph: FullGraph, slope: Tensor, frozen: bool) -> Iterator[tuple[list[int], Tensor]]:
    """Yields, from the top down, columns of the graph and the gradients at what those readers read, (R, B, T, d).

    `slope` is the gradient of the metric by the logits, (B, V). Heads come in chunks that stay within the memory bound;
    under `frozen`, queries and keys have no gradient and are left out.
    """
    spec = state.model.transformer
    assert state.final_read is not None
    readout = ReadoutMap(spec, state.final_read, state.answer, "logits", None, frozen)
    stream = readout.rmv(slope.unsqueeze(2)).view_as(state.final_read)
    yield [graph.columns["logits", None]], stream.unsqueeze(0)
    for layer in reversed(range(len(spec.blocks))):
        block = spec.blocks[layer]
        mlp = MLPMap(block.mlp, state.mlp_reads[layer], frozen)
        by_mlp = mlp.rmv(stream.flatten(1).unsqueeze(2)).view_as(stream)
        yield [graph.columns[f"m{layer}", None]], by_mlp.unsqueeze(0)
        above = stream if block.parallel else stream + by_mlp
        stream = stream + by_mlp
        for port, heads, by_head in _head_gradients(state, layer, above, frozen):
            yield [graph.columns[f"a{layer}.h{head}", port] for head in heads], by_head
            stream = stream + by_head.sum(dim=0)


def _head_gradients(
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
        for port, gradient in HeadMap(attention, range(len(heads)), None).ports_back(cotangent):
            yield port, heads, gradient
