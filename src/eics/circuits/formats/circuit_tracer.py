"""circuit-tracer (`.pt`): an attribution graph as a matrix over features, errors, tokens and logits.

It is projected onto our nodes as Neuronpedia's graphs are (`neuronpedia.py`).
"""

from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Reader
from eics.circuits.formats.shared import FEATURES
from eics.circuits.graph import Edge
from eics.errors import CircuitError

NAME = "circuit-tracer-pt"


def read(value: Any) -> CircuitGraph:
    """Reads the matrix, targets by sources: features, then errors by layer, tokens, logits."""
    import torch

    matrix, groups, layers, features = _layout(value)
    names = [*(f"m{layer}" for layer in range(layers)), "input", "logits"]
    # sums over rows, then over columns, by node: never a second matrix of full size in double precision
    rows = torch.zeros(len(names), matrix.shape[1], dtype=torch.float64)
    for start in range(0, len(groups), 1024):
        chunk = slice(start, start + 1024)
        rows.index_add_(0, groups[chunk], matrix[chunk].abs().double())
    sums = torch.zeros(len(names), len(names), dtype=torch.float64).index_add_(1, groups, rows)
    scores: dict[Edge, float] = {}
    for target, source in sums.nonzero().tolist():
        if names[source] == names[target]:
            raise CircuitError(
                f"must have effects between different layers. Its matrix has effects inside {names[source]}."
            )
        scores[Edge(names[source], names[target])] = float(sums[target, source])
    return CircuitGraph(
        tuple(scores),
        scores=scores,
        node_attributes=features,
        metadata={key: value[key] for key in ("input_string", "scan_name", "scan") if isinstance(value.get(key), str)},
        format=NAME,
        notes=(f"A matrix of {len(groups)} nodes was read: {FEATURES}",),
    )


def _layout(value: dict[str, Any]) -> tuple[Any, Any, int, dict[str, dict[str, Any]]]:
    """The matrix, the index of our node for each of its rows, the number of layers, and the features by node."""
    import torch

    matrix, active = value["adjacency_matrix"], value["active_features"]
    for name, tensor, size in (("adjacency_matrix", matrix, 2), ("active_features", active, 2)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != size:
            raise CircuitError(f"must have a matrix {name}.")
    selected = value.get("selected_features")
    chosen = active if selected is None else active[_indices(selected, len(active))]
    tokens, logits = len(value["input_tokens"]), _logit_count(value)
    n = matrix.shape[0]
    errors = n - len(chosen) - tokens - logits
    if matrix.shape != (n, n) or chosen.shape[1] != 3 or tokens < 1 or errors < 0 or errors % tokens:
        raise CircuitError(
            f"must have a square matrix over {len(chosen)} features, errors of each layer at {tokens} positions, "
            f"{tokens} tokens and {logits} logits. Got {tuple(matrix.shape)}."
        )
    layers = errors // tokens
    layer_of = chosen[:, 0].long()
    if len(layer_of) and not 0 <= int(layer_of.min()) <= int(layer_of.max()) < layers:
        raise CircuitError(f"must have features in its {layers} layers. Got one in layer {int(layer_of.max())}.")
    groups = torch.cat(
        [
            layer_of,
            torch.arange(layers).repeat_interleave(tokens),
            torch.full((tokens,), layers),
            torch.full((logits,), layers + 1),
        ]
    )
    features: dict[str, dict[str, Any]] = {}
    for layer, position, feature in chosen.tolist():
        listed = features.setdefault(f"m{int(layer)}", {"features": []})["features"]
        listed.append({"ctx_idx": int(position), "feature": int(feature)})
    return matrix, groups, layers, features


def _indices(selected: Any, limit: int) -> Any:
    import torch

    if not isinstance(selected, torch.Tensor) or selected.dim() != 1 or selected.is_floating_point():
        raise CircuitError("must have indices as selected_features.")
    if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < limit:
        raise CircuitError(f"must select features among its {limit} active ones. Got index {int(selected.max())}.")
    return selected.long()


def _logit_count(value: dict[str, Any]) -> int:
    targets = value.get("logit_targets", value.get("logit_tokens"))
    if targets is None:
        raise CircuitError("must have logit_targets (or logit_tokens).")
    return len(targets)


_KEYS = {"adjacency_matrix", "active_features", "input_tokens"}
READER = Reader("circuit-tracer .pt", ("torch",), dict, lambda value: value.keys() >= _KEYS, read)
