"""Weights from disk: a path, a hub id, or the name of a bundled or fetched model. No foreign code, no pickle.

The name is looked up first (`locate.py`), then the config, which may name a family that nothing here understands, then
the weights, which must be exactly those of the model (`checkpoint.py`), then the tokenizer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eics.errors import ModelError, OptionError
from eics.models.checkpoint import check_finite, check_stored, check_weights
from eics.models.device import choose_device, choose_dtype
from eics.models.families.registry import adapter_for
from eics.models.hub import hub_is_unreachable
from eics.models.load_errors import explained
from eics.models.locate import locate

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def load_pretrained(
    path: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = "auto",
    trust_remote_code: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """A transformers model (from a folder, a hub id or a name of ours) and its tokenizer, or None."""
    if not isinstance(trust_remote_code, bool):  # the text "no" is true
        raise OptionError.of("trust_remote_code", "True or False", trust_remote_code)
    where = choose_device(device)
    torch_dtype = choose_dtype(dtype, where)
    name = locate(path)
    hub = {key: options[key] for key in _HUB_OPTIONS if key in options} | {"trust_remote_code": trust_remote_code}
    with _quiet(), explained(str(path)):
        from transformers import AutoConfig, AutoModelForCausalLM

        if not Path(name).is_dir() and hub_is_unreachable():
            options, hub = options | {"local_files_only": True}, hub | {"local_files_only": True}  # cached models load
        config = AutoConfig.from_pretrained(name, **hub)
        adapter_for(config.model_type)
        # Mismatched sizes are ignored only here: `check_weights` refuses them by name.
        how = {"use_safetensors": True, "weights_only": True, "ignore_mismatched_sizes": True}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=torch_dtype, output_loading_info=True, **options | hub | how
        )
        module, info = loaded
        check_weights(str(path), info)
        check_stored(str(path), _folder(name, hub), module)
        module = module.to(where).eval()
        check_finite(str(path), module, torch_dtype)
        return module, _tokenizer(name, hub)


def _tokenizer(name: str, hub: dict[str, Any]) -> Any:
    """The tokenizer that comes with the model; None if there is none: token ids can still be scored."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **hub)
    except Exception as error:
        if not _has_tokenizer_files(name, hub):
            return None
        if "trust_remote_code" in str(error):
            raise
        raise ModelError(
            f"The tokenizer of {name!r} must be readable: {_reason(error)} Repair its files, or remove them and score "
            "token ids."
        ) from error
    # Without files transformers makes up a tokenizer that knows nothing but its special tokens.
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_tokens) else None


def _has_tokenizer_files(name: str, hub: dict[str, Any]) -> bool:
    if Path(name).is_dir():
        return any((Path(name) / file).is_file() for file in _TOKENIZER_FILES)
    from huggingface_hub import try_to_load_from_cache

    cache = {key: hub[key] for key in ("cache_dir", "revision") if key in hub}
    return any(isinstance(try_to_load_from_cache(name, file, **cache), str) for file in _TOKENIZER_FILES)


def _folder(name: str, hub: dict[str, Any]) -> Path | None:
    """Where the model's files are: its folder, or its snapshot in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    cache = {key: hub[key] for key in ("cache_dir", "revision") if key in hub}
    config = try_to_load_from_cache(name, "config.json", **cache)
    return Path(config).parent if isinstance(config, str) else None


def _reason(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return first if first.endswith(".") else f"{first}."


@contextmanager
def _quiet() -> Iterator[None]:
    """A library does not draw or write on its caller's terminal; what matters in a failure is in its exception."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub", "httpx")]
    levels, bars = [logger.level for logger in loggers], transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
