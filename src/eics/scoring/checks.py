"""What must hold before anything is computed; each check raises an error that says what came and what to do."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import CircuitError, OptionError, PromptError
from eics.linearized.circuit import LinearizedCircuit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.options import Options
from eics.transformer.interventions import Intervention, as_interventions
from eics.transformer.interventions.donors import bind

Interventions = dict[str | int, tuple[Intervention, ...]]


def interventions_by_prompt(model: Model, prompts: Sequence[Prompt], given: Any) -> Interventions:
    """The interventions on each prompt, by its id; `given` is one list for all prompts, or a list for each id."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and "kind" not in given:
        ids = {prompt.id for prompt in prompts}
        unknown = [id for id in given if id not in ids]
        if unknown:
            raise OptionError.of("interventions", "a list, or a dictionary by the prompts' ids", unknown[0])
        return {id: bind(model, as_interventions(interventions)) for id, interventions in given.items()}
    bound = bind(model, as_interventions(given))
    return {prompt.id: bound for prompt in prompts}


def check_readout(model: Model, configurations: Sequence[Options], tokens: Sequence[int] | None) -> None:
    """The read-out `tokens` needs tokens of the model's vocabulary."""
    if all(options.readout != "tokens" for options in configurations):
        return
    if not tokens or any(not 0 <= token < model.vocabulary for token in tokens):
        must = f"a list of ids from 0 to {model.vocabulary - 1} for readout 'tokens'"
        raise OptionError.of("tokens", must, None if tokens is None else list(tokens))


def check_answer(answer: int | None, length: int) -> None:
    """The answer position lies in the prompt."""
    if answer is not None and not -length <= answer < length:
        raise PromptError(f"the answer position must lie in the prompt's {length} tokens; it is {answer}")


def keeps_positions(circuit: Circuit, length: int, configurations: Sequence[Options]) -> bool:
    """Whether every node keeps at least one position of a prompt of this length."""
    first = 1 if any(options.positions == "no_sink" for options in configurations) else 0
    return length > max([first, *map(max, circuit.positions.values())])


def check_carries(linearized: LinearizedCircuit) -> None:
    """Some edge carries something."""
    if not linearized.edges:
        raise CircuitError(
            f"At least one edge must carry something under linearization {linearized.linearization!r}. All "
            f"{linearized.edges_left_out} edges enter through <q> or <k>, which it holds constant: use 'jacobian'."
        )


def check_ids(ids: Sequence[str | int] | None, batch: int) -> Sequence[str | int]:
    """One id for each prompt; numbers from 0 if none are given."""
    if ids is None:
        return range(batch)
    names = [name if isinstance(name, str) else index(name) for name in ids] if isinstance(ids, Iterable) else None
    if names is None or len(names) != batch:
        raise OptionError.of("ids", f"a list with one for each of the {batch} prompts", ids)
    return names
