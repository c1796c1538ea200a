"""Prompts on which a model's activations overflow: their rows are zeroed, so that the rest of the batch is scored."""

from itertools import compress

import torch

from eics.linalg.host_device import skip_recording, to_host
from eics.transformer.forward import ForwardState


def zero_nonfinite_rows(state: ForwardState) -> set[int]:
    """Zeroes, in place, every row that is not finite, and returns their indices; a factorization would fail on them."""
    stores = (state.attention_reads, state.mlp_reads, state.z, state.summed, state.mlp_writes)
    tensors = [tensor for store in stores for tensor in store.values()]
    tensors += [change for layer in state.applied.heads.values() for change in layer.values()]
    tensors += [t for t in (state.input, state.final_read, state.final, state.logits) if t is not None]
    norms = torch.stack([torch.linalg.vector_norm(tensor.flatten(1), dim=1) for tensor in tensors])
    suspicious = to_host((~norms.isfinite()).any(dim=1))  # one synchronisation for all tensors
    if any(suspicious):
        skip_recording()
    nonfinite: set[int] = set()
    for tensor in compress(tensors, suspicious):  # the norm of finite numbers may overflow
        rows = (~tensor.flatten(1).isfinite().all(dim=1)).nonzero().flatten().tolist()
        tensor[rows] = 0.0
        nonfinite.update(rows)
    return nonfinite
