"""Weights from disk: a path, a hub id, or the name of a bundled or fetched model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eics.errors import ModelError


def load_pretrained(path: str | Path, *, dtype: str | None, device: str | None, **options: Any) -> tuple[Any, Any]:
    """A transformers model (from a folder, a hub id or a name of ours) and its tokenizer, or None."""
    path = _resolve(path)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch_dtype = getattr(torch, dtype or "float32", None)
    if torch_dtype not in (torch.float32, torch.float64, torch.bfloat16):
        raise ModelError(f"The model's dtype must be float32, float64 or bfloat16. Got {dtype!r}.")
    model: Any
    try:
        with _no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch_dtype, use_safetensors=True, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"The model must be a folder or hub id with safetensors. Got {str(path)!r}: {first}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), **options)
    except (OSError, ValueError):
        tokenizer = None  # token ids can still be scored
    return model.to(device or "cpu").eval(), tokenizer


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """A library does not draw on its caller's terminal."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _resolve(path: str | Path) -> str | Path:
    """The folder of a bundled or fetched model if this is its name; any other path or hub id unchanged."""
    from eics.models.download.fetch import fetched
    from eics.models.download.sources import SOURCES, bundled_model

    if Path(path).exists():
        return path
    bundled = bundled_model(str(path))
    if bundled is not None or str(path) not in SOURCES:
        return bundled or path
    folder = fetched(str(path))
    if folder is None:
        raise ModelError(f"The model {str(path)!r} must be fetched first: run `eics models fetch {path}`.")
    return folder
