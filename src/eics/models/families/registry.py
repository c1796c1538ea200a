"""The families that can be adapted. A new one is a new module, listed here."""

from eics.errors import ModelError
from eics.models.families.adapter import Adapter
from eics.models.families.gemma import Gemma
from eics.models.families.gpt2 import GPT2
from eics.models.families.llama import Llama
from eics.models.families.neox import GPTNeoX
from eics.models.families.phi3 import Phi3

_FAMILIES = (GPT2(), GPTNeoX(), Llama(), Gemma(), Phi3())

ADAPTERS: dict[str, Adapter] = {name: family for family in _FAMILIES for name in family.model_types}
"""The adapter for each `config.model_type`."""


def adapter_for(model_type: str) -> Adapter:
    """The adapter for a `config.model_type`; an unknown one is refused by name."""
    if model_type not in ADAPTERS:
        raise ModelError(unknown_family(model_type))
    return ADAPTERS[model_type]


def unknown_family(model_type: str) -> str:
    """What to say about a family without an adapter."""
    return (
        f"The architecture must be one of {', '.join(ADAPTERS)}. Got {model_type!r}: "
        "docs/add-a-family.md shows how to add it."
    )
