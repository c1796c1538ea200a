"""What a trace says, in sentences that a person understands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eics.scoring.numbers import number
from eics.studies.words import plural

if TYPE_CHECKING:
    from eics.studies.tracing.result import Trace

STOPPED = "The text reached the model's context of {context} tokens, where generation stopped."
ENDED = "The model ended the text before it had written {asked} tokens."


def sentence(trace: "Trace") -> str:
    """Which node was unusual at which token, and how unusual the text is as a whole."""
    if trace.failed:
        return f"The text was not traced: {trace.reason}."
    p = "" if trace.p_value is None else f"p = {number(trace.p_value)}"
    if not trace.suspects:
        return f"Every node wrote what is usual for what it read, at every token ({p})."
    first, more = trace.suspects[0], len(trace.suspects) - 1
    others = f"; {plural(more, 'more suspect')}" if more else ""
    token = " ".join(repr(first.token).split())
    return (
        f"{first.node} wrote something unusual at token {first.position} ({token}): z {number(first.z)}{others}; {p}."
    )


def ending_notes(read_out_is_suspect: bool, token: str, known: bool) -> Sequence[str]:
    """A warning if the read-out, judged at the last token alone, is unusual where no text of the reference ends.

    >>> ending_notes(True, " horn", known=False)[0]
    "No text of the calibration ends in ' horn': the read-out, judged there, may be a suspect for that alone."
    """
    if known or not read_out_is_suspect:
        return ()
    return (
        f"No text of the calibration ends in {token!r}: the read-out, judged there, may be a suspect for that alone.",
    )


def length_notes(length: int, lengths: tuple[int, int]) -> Sequence[str]:
    """A warning for a text that is longer than all texts of the reference: of more positions the largest z is larger.

    >>> length_notes(40, (5, 9))[0]
    'This text has 40 tokens, the texts of the calibration 5 to 9: over more tokens the largest z is larger, so that \
alarms come too often. Calibrate on texts as long.'
    """
    if length <= lengths[1]:
        return ()
    return (
        f"This text has {length} tokens, the texts of the calibration {lengths[0]} to {lengths[1]}: over more tokens "
        "the largest z is larger, so that alarms come too often. Calibrate on texts as long.",
    )
