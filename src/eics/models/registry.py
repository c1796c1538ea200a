"""Which families are known."""

from eics.models.base import Adapter
from eics.models.gemma import Gemma
from eics.models.gpt2 import GPT2
from eics.models.llama import Llama
from eics.models.neox import GPTNeoX
from eics.models.phi3 import Phi3

ADAPTERS: tuple[Adapter, ...] = (GPT2(), GPTNeoX(), Llama(), Gemma(), Phi3())


def supported() -> tuple[str, ...]:
    """The `config.model_type` values that can be adapted."""
    return tuple(name for adapter in ADAPTERS for name in adapter.model_types)
