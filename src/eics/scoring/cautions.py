"""What a reader should know before trusting a record's numbers: its `warnings`, each with a code and a text."""

from typing import Any

HARDLY_ANY_PATH = "hardly-any-path"

LEAST_RATIO = 1e-6
"""The smallest emergence ratio that says more than that nothing gets through.

Per channel the macro map then carries less than a millionth of what a part carries: an amplitude of a thousandth. On
SmolLM2 a discovered circuit has ratios near 0.1, random ones of its size 1e-6 to 1e-3, and chains of two to five heads
at random, through which nothing passes, 1e-21 to 1e-11.
"""


def ratio_warnings(numbers: dict[str, Any]) -> list[dict[str, str]]:
    """Says so if the emergence ratio is the quotient of a number that all but vanished.

    A ratio of exactly 0 has a reason of its own in the record.
    """
    ratio = numbers.get("emergence_ratio")
    if ratio is None or not 0 < ratio < LEAST_RATIO:
        return []
    text = (
        f"r = {ratio:.1e} says only that hardly any path carries anything from the sources to the sinks: do not "
        "compare such ratios. See what random circuits of this size give (--against-random), or prune the circuit."
    )
    return [{"code": HARDLY_ANY_PATH, "text": text}]


UNLIKE_REFERENCE = "unlike-reference"
_UNUSUAL = 0.01  # p-values below which what the nodes were given, or how they work together, is worth a warning


def reference_warnings(length: int, lengths: tuple[int, int], p_input: float, p_mean: float) -> list[dict[str, str]]:
    """Says in which respects a judged prompt is unlike the prompts that taught what is usual.

    >>> [warning["text"] for warning in reference_warnings(40, (6, 20), 0.5, 0.5)]
    ['The prompt is unlike the reference: it has 40 tokens, the reference 6 to 20. Suspects are made to survive that, \
p_value_mean is not.']
    """
    respects = []
    if not lengths[0] <= length <= lengths[1]:
        respects.append(f"it has {length} tokens, the reference {lengths[0]} to {lengths[1]}")
    if p_input <= _UNUSUAL:
        respects.append(f"what its nodes were given is unusual (p = {p_input:.2g})")
    if p_mean <= _UNUSUAL:
        respects.append(f"its nodes together work differently (p = {p_mean:.2g})")
    if not respects:
        return []
    text = f"The prompt is unlike the reference: {'; '.join(respects)}."
    return [{"code": UNLIKE_REFERENCE, "text": f"{text} Suspects are made to survive that, p_value_mean is not."}]
