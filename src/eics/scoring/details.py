"""What a reader asks next about one prompt: where, on what, and saying what. Only if asked for (`details=True`).

    positions    each node's share of the residual, split over token positions; the read-out's lies at the answer
    patterns     the attention pattern of each head in the circuit, from each query or, for long prompts, the answer's
    top_tokens   what each head or MLP adds to the logits at the answer position: the logit lens of its write

All of it comes from the pass that was scored; `logit_lens.py` has the logit lens. What was compared with what is usual
has one part more, `expected` (`expected_details.py`).

Sizes are bounded: a head has T x T weights up to `MOST_QUERIES` tokens, beyond that T; `queries` says which rows
there are.
"""

from typing import Any

from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.circuits.names import heads_by_layer
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.logit_lens import LogitLens, short
from eics.scoring.options import Options
from eics.scoring.sheaf import position_shares
from eics.transformer.attention import AttentionState
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import Linearizer, TransformerRun

MOST_QUERIES = 64
_DIGITS = 4  # of attention weights


def details_of(state: ForwardState, linearized: LinearizedCircuit, options: Options) -> list[dict[str, Any]]:
    """The `details` of each prompt of a batch, as records have them."""
    lengths, answers = state.lengths.tolist(), state.answer.tolist()
    shares = _positions(linearized.restrict(options.positions), options, lengths, answers)
    patterns = _patterns(state, linearized.circuit, lengths, answers)
    tokens = _top_tokens(state, linearized.circuit)
    columns = zip(shares, patterns, tokens, strict=True)
    return [{"positions": own, "patterns": rows, "top_tokens": top} for own, rows, top in columns]


def _positions(
    linearized: LinearizedCircuit, options: Options, lengths: list[int], answers: list[int]
) -> list[dict[str, list[float]]]:
    """Shares by token, for each prompt and node. A stalk without positions, the read-out's, is at the answer."""
    by_prompt: list[dict[str, list[float]]] = [{} for _ in lengths]
    residual = "joint" if options.residual == "calibrated" else options.residual  # judged at one position alone
    shares = position_shares(linearized.engine(), residual=residual, metric=options.metric)
    for node, tensor in shares.items():
        rows = tensor.expand(len(lengths), -1).tolist()
        for shown, row, length, answer in zip(by_prompt, rows, lengths, answers, strict=True):
            whole = row[:length]
            if linearized.stalks[node].positions is None:
                whole = [0.0] * answer + row + [0.0] * (length - answer - 1)
            shown[node] = [short(share) for share in whole]
    return by_prompt


def _patterns(
    state: ForwardState, circuit: Circuit, lengths: list[int], answers: list[int]
) -> list[dict[str, dict[str, Any]]]:
    """The rows of each head's pattern, for each prompt: all queries of a short prompt, the answer's of a long one."""
    by_prompt: list[dict[str, dict[str, Any]]] = [{} for _ in lengths]
    queries = [
        list(range(length)) if length <= MOST_QUERIES else [answer]
        for length, answer in zip(lengths, answers, strict=True)
    ]
    for layer, heads in heads_by_layer(circuit.order).items():
        spec = state.model.transformer.blocks[layer].attention
        read, rotation = state.attention_reads[layer], state.rotations.get(layer)
        attention = AttentionState(spec, read, rotation, state.summed.get(layer), frozen=True, heads=heads)
        for head, pattern in zip(heads, attention.activations.pattern, strict=True):
            for shown, rows, asked, length in zip(by_prompt, pattern, queries, lengths, strict=True):
                kept = rows[asked, :length].double().tolist()
                weights = [[round(weight, _DIGITS) for weight in row] for row in kept]
                shown[f"a{layer}.h{head}"] = {"queries": asked, "rows": weights}
    return by_prompt


def _top_tokens(state: ForwardState, circuit: Circuit) -> list[dict[str, list[dict[str, Any]]]]:
    """For each prompt, the tokens to whose logits each head or MLP adds most at the answer position."""
    lens = LogitLens(state)
    by_prompt: list[dict[str, list[dict[str, Any]]]] = [{} for _ in state.answer]
    for node, write in _writes_at_answer(state, circuit).items():
        for shown, tokens in zip(by_prompt, lens.top(lens.logits(write)), strict=True):
            shown[node] = tokens
    return by_prompt


def _writes_at_answer(state: ForwardState, circuit: Circuit) -> dict[str, Tensor]:
    """What each head and MLP of the circuit wrote at the answer position, (B, d), interventions included."""
    at_answer = Linearizer(TransformerRun(state.at_answer(), circuit), frozen=True)
    nodes = [node for node in map(Node.parse, circuit.order) if node.kind in (Kind.HEAD, Kind.MLP)]
    return {node.name: at_answer.written(node).squeeze(1) for node in nodes}
