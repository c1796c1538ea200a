"""What a calibrated record says, in a sentence that a person understands.

>>> from eics.scoring.result import NodeTerm, Score
>>> odd = NodeTerm("a9.h4", 8.0, 0.5, z=5.1, p=0.004)
>>> print(verdict(Score(0, "ok", p_value=0.004, p_value_mean=0.4, suspects=["a9.h4"], nodes=(odd,))))
a9.h4 wrote something unusual for what it read (p = 0.00400); everything else as usual.
"""

from eics.scoring.numbers import number
from eics.scoring.result import Score

_NAMED = 3


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
