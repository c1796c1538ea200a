"""Weights from disk: a path, a hub id or the name of a bundled or fetched model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eics.errors import ModelError


def load_pretrained(path: str | Path, *, dtype: str | None, device: str | None, **options: Any) -> tuple[Any, Any]:
    """The transformers model at a path, under a hub id or behind a name of ours; and its tokenizer, or None."""
    path = _by_name(path)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind = getattr(torch, dtype or "float32", None)
    if kind not in (torch.float32, torch.float64, torch.bfloat16):
        raise ModelError(f"The model's dtype must be float32, float64 or bfloat16. Got {dtype!r}.")
    try:
        with _without_bars():
            model = AutoModelForCausalLM.from_pretrained(str(path), dtype=kind, use_safetensors=True, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"The model must be a folder or hub id with safetensors. Got {str(path)!r}: {first}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), **options)
    except (OSError, ValueError):
        tokenizer = None  # token ids can still be scored
    placed: Any = model
    return placed.to(device or "cpu").eval(), tokenizer


@contextmanager
def _without_bars() -> Iterator[None]:
    """A library does not draw on its caller's terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _by_name(path: str | Path) -> str | Path:
    """The folder behind the name of a bundled or fetchable model; any other path as it is."""
    from eics.models.download.fetch import fetched
    from eics.models.download.sources import SOURCES
    from eics.models.download.worlds import bundled_model

    if Path(path).exists():
        return path
    bundled = bundled_model(str(path))
    if bundled is not None or str(path) not in SOURCES:
        return bundled or path
    folder = fetched(str(path))
    if folder is None:
        raise ModelError(f"The model {str(path)!r} must be fetched first: run `eics models fetch {path}`.")
    return folder
