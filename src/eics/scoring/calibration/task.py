"""A calibration to be made: what was given, checked before anything runs."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.models.base import Model
from eics.models.prompts import Prompt, as_prompts
from eics.scoring.calibration.calibration import Calibration, compared
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.reader import Phase, Reader, unseen
from eics.scoring.checks import check_flag, check_readout, check_whole
from eics.scoring.options import Options, resolve
from eics.transformer.adapt import adapt
from eics.transformer.explained import AT


@dataclass(frozen=True)
class Task:
    """What `calibrate` was asked for.

    Attributes:
        model, circuit, prompts, options, answer, tokens, batch_size: as `score_prompts` takes them.
        groups: of each prompt, as text; None if equal token lists are a group.
        at, keep_moments: of the learned sheaf.
        add_to: the calibration to go on from.
        phase: told when a long phase begins. failures: filled with the reason of each prompt that fails.
    """

    model: Model
    circuit: Circuit
    prompts: list[Prompt]
    options: Options
    groups: list[str] | None = None
    at: str = "answer"
    keep_moments: bool = False
    add_to: Calibration | None = None
    answer: int | None = None
    tokens: tuple[int, ...] | None = None
    batch_size: int = 8
    phase: Phase = field(default=unseen)
    failures: dict[str | int, str] = field(default_factory=dict)

    @property
    def learns(self) -> bool:
        """Whether a sheaf is learned."""
        return self.options.residual == "calibrated"

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of a calibration that say whose it is."""
        return {
            "model": self.model.name,
            "circuit": self.circuit.label(),
            "options": compared(self.options),
            "answer": self.answer,
            "tokens": self.tokens,
            "fingerprint": self.model.fingerprint(),
            "seed": self.options.seed,
        }

    @property
    def reader(self) -> Reader:
        """How prompts become samples; prompts that are added are judged where the others were."""
        at = self.at if self.add_to is None else self.earlier.sheaf.at
        return Reader(
            self.model,
            self.circuit,
            self.options,
            at,
            self.batch_size,
            self.answer,
            self.tokens,
            self.phase,
            self.failures,
        )

    @property
    def earlier(self) -> Learned:
        """What was learned before; refuses what cannot be gone on from."""
        learned = None if self.add_to is None else self.add_to.learned
        if self.add_to is None or learned is None or learned.kept is None or self.add_to.alpha is not None:
            raise OptionError(
                "Prompts can be added to a calibration that was made with --terms sheaf --keep-moments "
                '(terms="sheaf", keep_moments=True). This one was not: calibrate again on all prompts.'
            )
        return learned


def checked_task(
    model: Any,
    circuit: Circuit,
    prompts: Any,
    *,
    preset: Options | str,
    options: dict[str, Any],
    group: Any,
    **more: Any,
) -> Task:
    """The task; an error says what cannot be."""
    adapted, chosen, listed = adapt(model), resolve(preset, options), as_prompts(prompts)
    adapted.check_circuit(circuit)
    circuit.carrying(chosen.linearization)  # refuses a circuit of which nothing remains
    answer = more["answer"]
    more |= {
        "answer": None if answer is None else check_whole("answer", answer),
        "batch_size": check_whole("batch_size", more["batch_size"], least=1),
        "keep_moments": check_flag("keep_moments", more["keep_moments"]),
        "tokens": check_readout(adapted, [chosen], more["tokens"]),
    }
    task = Task(adapted, circuit, listed, chosen, check_groups(group, listed), **more)
    if task.at not in AT:
        raise OptionError.of("at", f"one of {', '.join(AT)}", task.at)
    if not task.learns:
        _check_no_sheaf(task)
    elif task.add_to is not None:
        _check_earlier(task, task.add_to)
    return task


def check_groups(group: Any, prompts: Sequence[Prompt]) -> list[str] | None:
    """The group of each prompt as text; refuses another number of them than there are prompts, and one that is missing:
    prompts without a group would all be taken for one."""
    if group is None:
        return None
    listed = getattr(group, "tolist", lambda: group)()  # of a tensor, an array or a column, plain values
    is_list = isinstance(listed, Iterable) and not isinstance(listed, str | bytes | Mapping | Set)
    groups = list(listed) if is_list else None
    if groups is None or len(groups) != len(prompts):
        came = group if groups is None else f"{len(groups)} of them"
        raise OptionError.of("group", f"a list with one for each of the {len(prompts)} prompts", came)
    for prompt, one in zip(prompts, groups, strict=True):
        if one is None or (isinstance(one, float) and math.isnan(one)):
            raise OptionError.of("group", f"given for every prompt, or for none; prompt {prompt.id!r} has none", one)
    return [_text(one) for one in groups]


def _text(group: Any) -> str:
    """A group as text; a whole number is one group whether a table had it as 3 or as 3.0."""
    return str(int(group)) if isinstance(group, float) and group.is_integer() else str(group)


def _check_no_sheaf(task: Task) -> None:
    """Refuses what concerns a learned sheaf alone: ignored, it would be taken for done."""
    residual = task.options.residual
    if task.options.terms == "sheaf":
        raise OptionError.of("terms", f"'all' to calibrate with residual {residual!r}", task.options.terms)
    given = {
        "add_to": task.add_to,
        "keep_moments": task.keep_moments or None,
        "group": task.groups,
        "at": None if task.at == "answer" else task.at,
    }
    for name, value in given.items():
        if value is not None:
            shown = value if isinstance(value, str | bool) else type(value).__name__
            raise OptionError.of(name, "given with residual 'calibrated', which alone learns a sheaf", shown)


def _check_earlier(task: Task, add_to: Any) -> None:
    """Refuses a calibration to which these prompts cannot be added."""
    if not isinstance(add_to, Calibration):
        raise OptionError.of("add_to", "an eics.Calibration; read its file with eics.load_calibration", add_to)
    add_to.fit(task.options, task.circuit.label(), task.answer, task.tokens)
    add_to.check_model(task.model)
    at = task.earlier.sheaf.at
    if task.at not in ("answer", at):  # `answer` is the default: it may not have been meant
        raise OptionError.of("at", f"{at!r}, as when the calibration was made", task.at)
