"""What must hold before anything is computed; each check raises an error that says what came and what to do."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from operator import index
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import CircuitError, OptionError, PromptError
from eics.models.base import Model
from eics.models.prompt_values import token_ids
from eics.models.prompts import Prompt, checked_ids
from eics.scoring.calibration.sheaf.judge import Judge
from eics.scoring.options import Options
from eics.transformer.interventions import Intervention, as_interventions
from eics.transformer.interventions.donors import bind

Interventions = dict[str | int, tuple[Intervention, ...]]


def interventions_by_prompt(model: Model, circuit: Circuit, prompts: Sequence[Prompt], given: Any) -> Interventions:
    """The interventions on each prompt, by its id; `given` is one list for all prompts, or a list for each id."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and "kind" not in given:
        ids = {prompt.id for prompt in prompts}
        unknown = [id for id in given if id not in ids]
        if unknown:
            raise OptionError.of("interventions", "a list, or a dictionary by the prompts' ids", unknown[0])
        return {id: bind(model, circuit, as_interventions(interventions)) for id, interventions in given.items()}
    bound = bind(model, circuit, as_interventions(given))
    return {prompt.id: bound for prompt in prompts}


def check_readout(model: Model, configurations: Sequence[Options], tokens: Any) -> tuple[int, ...] | None:
    """The token ids of the read-out `tokens`, which needs some of the model's vocabulary."""
    try:
        ids = None if tokens is None else token_ids(tokens)
    except PromptError as error:
        raise OptionError(f"The 'tokens' option must be a list of token ids: {error}.") from None
    needed = any(options.readout == "tokens" for options in configurations)
    if needed and (not ids or any(not 0 <= token < model.vocabulary for token in ids)):
        must = f"a list of ids from 0 to {model.vocabulary - 1} for readout 'tokens'"
        raise OptionError.of("tokens", must, None if ids is None else list(ids))
    if ids is not None and not needed:  # ignored, they would be taken for counted
        raise OptionError.of("tokens", "given with readout 'tokens', the only one that reads them", list(ids))
    return ids


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number, such as a batch size or a position."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least) or (most is not None and value > most):
        lower, upper = "" if least is None else f" >= {least}", "" if most is None else f" and <= {most:,}"
        raise OptionError.of(name, f"a whole number{lower}{upper}", value)
    return index(value)


def check_flag(name: str, value: Any) -> bool:
    """True or False; the text "no" is neither."""
    if not isinstance(value, bool):
        raise OptionError.of(name, "True or False", value)
    return value


def check_answer(answer: int | None, length: int) -> None:
    """The answer position lies in the prompt."""
    if answer is not None and not -length <= answer < length:
        raise PromptError(f"the answer position must lie in the prompt's {length} tokens; it is {answer}")


def check_judge(judge: Judge | None, configurations: Sequence[Options], circuit: Circuit) -> None:
    """A calibrated residual needs a sheaf that was learned on this circuit, from enough prompts for the level."""
    for options in configurations:
        if options.residual != "calibrated":
            continue
        if judge is None:
            raise OptionError(
                "residual 'calibrated' needs a calibration with a learned sheaf: make one with `eics calibrate` "
                "(eics.calibrate), and give it as --calibration (calibration=)."
            )
        judge.check(circuit, options.level)


def keeps_positions(circuit: Circuit, length: int, configurations: Sequence[Options]) -> bool:
    """Whether every node keeps at least one position of a prompt of this length."""
    first = 1 if any(options.positions == "no_sink" for options in configurations) else 0
    return length > max([first, *map(max, circuit.positions.values())])


def refusals(circuit: Circuit, configurations: Sequence[Options]) -> tuple[str | None, ...]:
    """For each configuration, why nothing of the circuit remains in it, or None; refuses a circuit that none leaves."""
    reasons: list[str | None] = []
    refused: CircuitError | None = None
    for options in configurations:
        try:
            circuit.carrying(options.linearization)
            reasons.append(None)
        except CircuitError as error:
            refused = error
            reasons.append(str(error))
    if refused is not None and None not in reasons:
        raise refused
    return tuple(reasons)


def check_ids(ids: Sequence[str | int] | None, batch: int) -> Sequence[str | int]:
    """One id for each prompt; numbers from 0 if none are given."""
    return checked_ids(ids, batch)
