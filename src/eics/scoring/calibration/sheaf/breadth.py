"""How broad a reference set is: how long its prompts are, and in how many different tokens they end."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

NARROW = 7.0
"""Effective endings below which a reference is narrow; the rule was registered before the study
(docs/validation-calibrated.md#what-a-reference-needs)."""


@dataclass(frozen=True)
class Breadth:
    """Of the prompts that ran.

    Attributes:
        lengths: the shortest and the longest prompt, in tokens.
        endings: how many prompts end in each token; empty in files that did not count them.
    """

    lengths: tuple[int, int]
    endings: Mapping[int, int]

    @classmethod
    def of(cls, prompts: Iterable[Sequence[int]], known: "Breadth | None" = None) -> "Breadth":
        """Of the tokens of prompts, together with what is `known` of others."""
        lengths, endings = list(known.lengths) if known else [], Counter(known.endings if known else {})
        for tokens in prompts:
            lengths.append(len(tokens))
            endings[tokens[-1]] += 1
        return cls((min(lengths), max(lengths)), dict(sorted(endings.items())))

    @property
    def effective_endings(self) -> float | None:
        """How many tokens the prompts end in, each counted by its share: the exponential of the entropy.

        >>> [round(Breadth((4, 4), endings).effective_endings, 2) for endings in ({5: 9}, {5: 4, 6: 4}, {5: 9, 6: 1})]
        [1.0, 2.0, 1.38]
        """
        total = sum(self.endings.values())
        if not total:
            return None
        return exp(-sum(count / total * log(count / total) for count in self.endings.values()))

    @property
    def is_narrow(self) -> bool:
        """Whether prompts of another form will raise more false alarms than they should."""
        endings = self.effective_endings
        return endings is not None and endings < NARROW
