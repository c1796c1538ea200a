"""What a calibrated record says, in a sentence that a person understands.

>>> from eics.scoring.result import NodeTerm, Score
>>> odd = NodeTerm("a9.h4", 8.0, 0.5, z=5.1, p=0.004)
>>> print(verdict(Score(0, "ok", p_value=0.004, p_value_mean=0.4, suspects=["a9.h4"], nodes=(odd,))))
a9.h4 wrote something unusual for what it read (p = 0.00400); everything else as usual.
"""

from typing import Any

from eics.scoring.numbers import number, percent
from eics.scoring.result import Score

_NAMED = 3
_TOKENS = 3  # of a write
_PARENTS = 2
_LEAST = 0.05  # share of what is unusual that is worth a word


def verdict(score: Score) -> str | None:
    """One sentence; None for a record that was not compared with what is usual."""
    if score.suspects is None or score.p_value is None:
        return None
    if not score.suspects:
        return f"Every node wrote what is usual for what it read (p = {number(score.p_value)})."
    p_values = {term.node: term.p for term in score.nodes}
    named = [f"{node} wrote something unusual for what it read (p = {number(p_values.get(node))})"
             for node in score.suspects[:_NAMED]]  # fmt: skip
    more = len(score.suspects) - len(named)
    rest = f"so did {more} more" if more else "everything else as usual"
    return f"{'; '.join(named)}; {rest}."


def explanations(score: Score) -> list[str]:
    """For each suspect that `details` describe, what it wrote, what was expected of it, and what carried it there.

    >>> tops = {"wrote": [{"token": " horn", "logit": 2.0}], "expected": [{"token": " flute", "logit": 1.0}]}
    >>> entry = tops | {"parents": {"m0": 0.25, "a0.h1": 0.01}, "rest": 0.74, "off_circuit": 0.81}
    >>> for line in explanations(Score(0, "ok", suspects=["m1"], details={"expected": {"m1": entry}})):
    ...     print(line)
    m1 wrote towards ' horn'; expected was ' flute'. It was carried there from off the circuit (81.0%), by m0 (25.0%).
    """
    entries = (score.details or {}).get("expected", {})
    return [_explanation(node, entries[node]) for node in (score.suspects or [])[:_NAMED] if node in entries]


def _explanation(node: str, entry: dict[str, Any]) -> str:
    parents = [(f"by {name}", share) for name, share in list(entry["parents"].items())[:_PARENTS]]
    carried = [("from off the circuit", entry["off_circuit"]), *parents]
    shares = [f"{where} ({percent(share)})" for where, share in carried if share >= _LEAST]
    said = f"{node} wrote towards {_tokens(entry['wrote'])}; expected was {_tokens(entry['expected'])}."
    return said + (f" It was carried there {', '.join(shares)}." if shares else "")


def _tokens(entries: list[dict[str, Any]]) -> str:
    texts = [f"token {entry['id']}" if entry["token"] is None else repr(entry["token"]) for entry in entries]
    return ", ".join(texts[:_TOKENS])
