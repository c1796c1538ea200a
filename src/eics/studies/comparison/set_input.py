"""Two sets of prompts to compare: their tokens and groups, and what must hold before anything runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.calibration.sheaf.assign import assign, group_of_tokens
from eics.scoring.calibration.sheaf.fit import LEAST as LEAST_TO_FIT
from eics.scoring.calibration.task import check_groups

LEAST = 20
"""The fewest prompts of a set that are compared."""

_A_LINE = re.compile(r".*:\d+", re.DOTALL)  # an id that `read_prompts` makes of a file and a line

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class PromptSet:
    """One of the two sets.

    Attributes:
        key: `a` or `b`. name: what a person calls it.
        prompts: all of them. tokens: of each, None if the model cannot run it. groups: of each, None if none are given.
        failures: why the model cannot run a prompt.
    """

    key: str
    name: str
    prompts: tuple[Prompt, ...]
    tokens: tuple[Tokens | None, ...]
    groups: tuple[str, ...] | None
    failures: Mapping[str | int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, key: str, name: str, model: Model, prompts: Any, group: Any) -> "PromptSet":
        """From what `eics.compare` was given."""
        listed = tuple(as_prompts(prompts))
        try:
            groups = check_groups(group, listed)
        except OptionError as error:
            raise OptionError(f"Set {key.upper()}: {error}") from None
        tokens: list[Tokens | None] = []
        failures: dict[str | int, str] = {}
        for prompt in listed:
            try:
                tokens.append(tuple(tokenize(model, prompt)))
            except PromptError as error:
                tokens.append(None)
                failures[prompt.id] = str(error)
        return cls(key, name, listed, tuple(tokens), None if groups is None else tuple(groups), failures)

    @property
    def title(self) -> str:
        """As sentences name it.

        >>> PromptSet("a", "A", (), (), None).title, PromptSet("b", "copied.jsonl", (), (), None).title
        ('set A', 'set B (copied.jsonl)')
        """
        letter = self.key.upper()
        return f"set {letter}" if self.name == letter else f"set {letter} ({self.name})"

    def subject(self) -> str:
        """The same at the beginning of a sentence."""
        return f"S{self.title[1:]}"

    @cached_property
    def group_of(self) -> dict[str | int, str]:
        """The group of each prompt by its id, written as a calibration writes it: equal tokens are one by default."""
        if self.groups is not None:
            return {prompt.id: f"group:{group}" for prompt, group in zip(self.prompts, self.groups, strict=True)}
        pairs = zip(self.prompts, self.tokens, strict=True)
        return {prompt.id: group_of_tokens(tokens or ()) for prompt, tokens in pairs}

    @property
    def distinct(self) -> set[Tokens]:
        """The token lists that the model can run."""
        return {tokens for tokens in self.tokens if tokens}

    def taught(self, seed: int) -> set[str]:
        """The groups that teach a sheaf that is fitted on this set."""
        return {group for group in self.group_of.values() if assign(group, seed).fits}

    def only(self, ids: set[str | int]) -> list[Prompt]:
        """The prompts with these ids, in their order."""
        return [prompt for prompt in self.prompts if prompt.id in ids]


def check_sets(a: PromptSet, b: PromptSet, *, fits: bool, changed: bool) -> None:
    """Refuses sets that are too small or the same.

    `fits`: a calibration is fitted on A. `changed`: B has interventions, so it may have A's prompts.
    """
    for one, least in ((a, LEAST_TO_FIT if fits else LEAST), (b, LEAST)):
        check_enough(one, sum(bool(tokens) for tokens in one.tokens), least, one.failures, fits=fits and one is a)
    if (a.groups is None) != (b.groups is None):
        missing = "group_b" if b.groups is None else "group_a"
        raise OptionError.of(missing, "given if that of the other set is: groups are compared with groups", None)
    shared = a.distinct & b.distinct
    if a.distinct == b.distinct and not changed:
        raise OptionError(
            f"The two sets must differ. {a.subject()} and {b.title} have the same {len(shared)} prompts: give another "
            "one, or interventions on B."
        )
    if shared and fits:
        ids = [prompt.id for prompt, tokens in zip(b.prompts, b.tokens, strict=True) if tokens in shared]
        raise OptionError(
            "Without a calibration, the sets must have no prompt in common: those of A teach what is usual. "
            f"{len(ids)} of B's are in A ({ids[0]!r} first): take them out, or give a calibration made from others."
        )


def check_enough(
    one: PromptSet, found: int, least: int, failures: Mapping[str | int, str] | None = None, *, fits: bool = False
) -> None:
    """Refuses a set in which too few prompts can be judged."""
    if found >= least:
        return
    why = "".join(f" Prompt {id!r} failed: {reason}." for id, reason in list((failures or {}).items())[:1])
    without = "Without a calibration, which is then fitted on it, " if fits else ""
    raise OptionError(
        f"{without}{one.title if fits else one.subject()} must have at least {least} prompts that the model can run. "
        f"Of {len(one.prompts)}, {found} are such.{why}"
    )


def is_paired(a: PromptSet, b: PromptSet, paired: bool | None) -> bool:
    """Whether prompts of equal ids are pairs. By default they are if the sets have the same ids and these are the
    user's own; line numbers are not, because any two files have those."""
    ids_a, ids_b = ({prompt.id for prompt in one.prompts} for one in (a, b))
    if paired is None:
        paired = ids_a == ids_b and not any(isinstance(id, int) or _A_LINE.fullmatch(id) for id in ids_a)
    if not paired:
        return False
    if ids_a != ids_b:
        odd = next(iter(sorted(ids_a ^ ids_b, key=str)))
        where = "A" if odd in ids_a else "B"
        raise OptionError(f"Paired sets must have equal ids. {odd!r} is in {where} alone: give pairs, or paired=False.")
    if a.groups is not None and a.group_of != b.group_of:
        odd = next(id for id in a.group_of if a.group_of[id] != b.group_of[id])
        raise OptionError(f"The two prompts of a pair must belong to one group. Those of {odd!r} do not.")
    return True


def check_names(names: Any) -> tuple[str, str]:
    """What the sets are called."""
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise OptionError.of("names", "two texts, one for each set", names)
    return names[0], names[1]
