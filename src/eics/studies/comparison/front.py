"""`eics.compare`: two models on the same prompts, or two sets of prompts on one model."""

from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.studies.comparison.models import compare_models
from eics.studies.comparison.prompt_sets import compare_prompt_sets
from eics.studies.comparison.set_result import SetComparison
from eics.studies.comparison.summary import ModelComparison


def compare(
    model: Any, circuit: Circuit | None, prompts: Any, prompts_b: Any = None, *, against: Any = None, **options: Any
) -> ModelComparison | SetComparison:
    """What changed: between two models of one architecture, or between two sets of prompts.

    Two models, with `against`: for each part of the model, or each node of the circuit, how much of the change of its
    write was *made here* (its own function changed) and how much was *inherited* (what it read changed), and what the
    first of these does to the model's predictions.

    Two sets, with `prompts_b`: which nodes do something else on the second set than on the first: *entries*, unusual
    for what they were given, and nodes that *inherit*.

    Args:
        model: A, loaded, or a path or name.
        circuit: whose nodes to compare; for two models None stands for every part of the model.
        prompts: as `eics.score` takes them; for two sets, the first one.
        prompts_b: the second set.
        against: B, of the same architecture, shape, vocabulary and tokenizer; loaded, or a path or name.
        **options: of `compare_models` or of `compare_prompt_sets`, which document them.
    """
    if (prompts_b is None) == (against is None):
        must = "either against=, another model, or a second set of prompts"
        raise OptionError(f"A comparison needs {must}. Got {'neither' if against is None else 'both'}.")
    if prompts_b is None:
        return compare_models(model, circuit, prompts, against, **options)
    if circuit is None:
        raise OptionError("Two sets of prompts are compared on a circuit. Got none: give one.")
    return compare_prompt_sets(model, circuit, prompts, prompts_b, **options)
