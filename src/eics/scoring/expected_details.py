"""What each judged node wrote against what was expected of it, and which parents carried it: a part of `details`.

    wrote, expected, difference   top tokens at the answer position, through the final norm and the unembedding
    parents                       signed shares of what is unusual, largest first; `other_parents` has those left out
    rest                          1 less the parents' shares
    off_circuit                   the part of the rest that came from off the circuit or from an intervention

The mathematics is in `calibration/sheaf/expected.py`. A node that is not judged has no entry; one that is takes about
1 KB of JSON, whatever the size of the circuit.
"""

from typing import Any

from torch import Tensor

from eics.circuits.graph import Kind
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.calibration.sheaf.expected import Shares, expectation, parents_shares
from eics.scoring.calibration.sheaf.judge import Judge
from eics.scoring.logit_lens import LogitLens, short
from eics.transformer.linearize import TransformerRun

MOST_PARENTS = 8

Entry = dict[str, Any]


def expected_of(judge: Judge, run: TransformerRun, linearized: LinearizedCircuit) -> list[dict[str, Entry]]:
    """For each prompt of a pass that was judged, an entry for each node; `linearized` is the same pass under
    `frozen`."""
    sheaf, state = judge.sheaf, run.state
    expected, lens = expectation(sheaf, run), LogitLens(state)
    by_prompt: list[dict[str, Entry]] = [{} for _ in state.answer]
    for place, node in enumerate(sheaf.layout.judged):
        if node in judge.reasons:
            continue
        tokens = _tokens(lens, run, node, expected.written[place], expected.expected[place])
        shares = _entries(parents_shares(sheaf, linearized, expected, node, state.answer))
        for entries, said, carried in zip(by_prompt, tokens, shares, strict=True):
            entries[node] = said | carried
    return by_prompt


def _tokens(lens: LogitLens, run: TransformerRun, node: str, written: Tensor, expected: Tensor) -> list[Entry]:
    """Top tokens of two writes, (B, d), and of what the first has beyond the second."""
    ids = None
    if node != Kind.LOGITS:
        wrote, hoped = lens.logits(written), lens.logits(expected)
    elif run.readout == "tokens":  # the write is the logits of these tokens
        ids = run.tokens or ()
        wrote, hoped = written[:, : len(ids)], expected[:, : len(ids)]
    else:
        wrote, hoped = lens.unembedded(written), lens.unembedded(expected)
    columns = zip(*(lens.top(logits, ids) for logits in (wrote, hoped, wrote - hoped)), strict=True)
    return [dict(zip(("wrote", "expected", "difference"), tops, strict=True)) for tops in columns]


def _entries(shares: Shares) -> list[Entry]:
    """The shares of each prompt, the parents with the largest by name."""
    rest, off_circuit = shares.rest.tolist(), shares.off_circuit.tolist()
    parents = {name: share.tolist() for name, share in shares.parents.items()}
    entries = []
    for index in range(len(rest)):
        own = sorted(((name, column[index]) for name, column in parents.items()), key=lambda pair: -abs(pair[1]))
        entry: Entry = {"parents": {name: short(share) for name, share in own[:MOST_PARENTS]}}
        if len(own) > MOST_PARENTS:
            entry["other_parents"] = short(sum(share for _, share in own[MOST_PARENTS:]))
        entries.append(entry | {"rest": short(rest[index]), "off_circuit": short(off_circuit[index])})
    return entries
