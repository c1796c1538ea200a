"""Models from transformers: one small adapter for each family, the only place that knows their modules."""

from eics.models.base import Adapter, Model, Sites
from eics.models.load import adapt, load_model
from eics.models.registry import ADAPTERS, supported

__all__ = ["ADAPTERS", "Adapter", "Model", "Sites", "adapt", "load_model", "supported"]
