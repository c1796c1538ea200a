"""Function words: predictions that are easy to make and carry no answer.

A score that only notices that the model is about to say "the" looks like a detector of wrong answers, because "the" is
never a right one. Tokens without a letter or a digit (punctuation, a line break) count as function words too. Words
that are also names (may, us, will) are not on the list.
"""

FUNCTION_WORDS = frozenset(
    """
    a about above after again against all also although am among an and another any anything are around as at
    away be because been before being below between both but by can cannot could did do does doing down during
    each either else etc even ever every few for from further had has have having he her here hers herself him
    himself his how however i if in including into is it its itself just least less let like made make many me
    might more most much must my myself near neither never no nobody none nor not nothing now of off often on
    once one only onto or other others our ours ourselves out over own part per perhaps rather same several
    shall she should since so some someone something sometimes soon still such than that the their theirs them
    themselves then there therefore these they thing this those though through thus to together too toward
    towards under until up upon used very was we well were what whatever when where whether which while who
    whoever whole whom whose why with within without would yes yet you your yours yourself yourselves called
    known located named situated
    """.split()  # noqa: SIM905 - a list of two hundred strings reads worse
)

_EDGES = ".,;:!?()[]\"'"


def is_function_word(text: str) -> bool:
    """Whether the text of a token or answer is a function word, or no word at all.

    >>> [is_function_word(text) for text in (" the", "Paris", "\\n", "1984", " It")]
    [True, False, True, False, True]
    """
    word = text.strip().strip(_EDGES).lower()
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)
