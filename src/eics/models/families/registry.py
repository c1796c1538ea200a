"""Which families are known."""

from eics.errors import ModelError
from eics.models.base import Adapter
from eics.models.families.gemma import Gemma
from eics.models.families.gpt2 import GPT2
from eics.models.families.llama import Llama
from eics.models.families.neox import GPTNeoX
from eics.models.families.phi3 import Phi3

ADAPTERS: tuple[Adapter, ...] = (GPT2(), GPTNeoX(), Llama(), Gemma(), Phi3())


def supported() -> tuple[str, ...]:
    """The `config.model_type` values that can be adapted."""
    return tuple(name for adapter in ADAPTERS for name in adapter.model_types)


def adapter_of(name: str) -> Adapter:
    """The adapter of a `config.model_type`; an unknown one is refused by name."""
    for adapter in ADAPTERS:
        if name in adapter.model_types:
            return adapter
    raise ModelError(
        f"The architecture must be one of {', '.join(supported())}. Got {name!r}: "
        "docs/add-a-family.md says how to add it."
    )
