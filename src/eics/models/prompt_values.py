"""What Python callers may give as prompts: a value with exactly one meaning is accepted, any other is refused by name.

| given | means |
|---|---|
| text; whole numbers in a list, tuple, 1-d tensor or array; an object with `prompt` or `tokens` | one prompt |
| a tokenizer's output for one text | one prompt |
| a list, tuple, iterator, `Series` or array of those | as many prompts |
| a tokenizer's output with one row per text | as many prompts; the attention mask cuts the padding |

Everything else could mean several things, or nothing: a data frame (which column?), a 2-d tensor of several rows
(are they padded?), a set (in which order?), bytes, numbers, None.
"""

import io
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from pathlib import PurePath
from typing import Any

from eics.errors import OptionError, PromptError

_MUST = "text, a list of token ids, or a list of prompts"
_SHOWN = 60  # characters of a wrong value that an error repeats


def prompt_items(given: Any) -> tuple[list[Any], bool]:
    """One item per prompt (text, a tuple of ids, or an object with fields), and whether `given` is a single prompt.

    >>> prompt_items([5, 6]), prompt_items(["a", [5, 6]])
    (([(5, 6)], True), (['a', (5, 6)], False))
    """
    _refuse_ambiguous(given)
    if _is_encoding(given):
        rows, single = _encoded(given)
        return list(rows), single
    if isinstance(given, str | Mapping) or _has_fields(given):
        return [given], True
    array = _as_array(given)
    if array is not None:
        return _array_items(array)
    if not isinstance(given, Iterable):
        raise OptionError(f"The prompts must be {_MUST}. Got {shown(given)}.")
    items = _listed(given)
    if items and all(_is_whole(item) for item in items) and not _is_series(given):
        return [token_ids(items)], True
    return [_item(item, index) for index, item in enumerate(items)], False


def token_ids(given: Any) -> tuple[int, ...]:
    """Token ids from a list, tuple, 1-d tensor or array of whole numbers, or from a tensor with a single row."""
    array = _as_array(given)
    if array is not None:
        if array.ndim == 2 and array.shape[0] == 1:
            array = array[0]
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise PromptError(f"tokens must be a 1-d row of whole numbers; got {_described(array)}")
        return tuple(array.tolist())
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray | Mapping | Set):
        raise PromptError(f"tokens must be a list of ids; got {shown(given)}")
    tokens = tuple(given)
    wrong = [token for token in tokens if not _is_whole(token)]
    if wrong:
        raise PromptError(f"tokens must be whole numbers; got {shown(wrong[0])}")
    return tuple(int(token) for token in tokens)


def shown(value: Any) -> str:
    """A wrong value as an error names it: its type, and as much of it as fits.

    >>> shown(None), shown(2.5), shown(b"ab")
    ('None', 'the float 2.5', "the bytes b'ab'")
    """
    if value is None:
        return "None"
    text = repr(value)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    kind = type(value).__name__
    return f"the {kind} {' '.join(text.split())}" if not text.startswith(f"<{kind}") else f"a {kind}"


def _item(item: Any, index: int) -> Any:
    """One prompt of a list."""
    try:
        if _is_encoding(item):
            rows, _ = _encoded(item)
            if len(rows) != 1:
                raise PromptError(f"a tokenizer's output in a list must hold one prompt; this holds {len(rows)}")
            return rows[0]
        if isinstance(item, str | Mapping) or _has_fields(item):
            return item
        if not isinstance(item, Iterable) or isinstance(item, bytes | bytearray | Set):
            raise PromptError(f"it must be text, a list of token ids, or an object with one; got {shown(item)}")
        return token_ids(item)
    except PromptError as error:
        raise OptionError(f"Prompt {index} of the list cannot be read: {error}.") from None


def _refuse_ambiguous(given: Any) -> None:
    """Refuses what Python could iterate over but what is no list of prompts."""
    advice = None
    if type(given).__name__ == "DataFrame":
        columns = ", ".join(map(str, list(getattr(given, "columns", []))[:8]))
        advice = f"a DataFrame: give one of its columns ({columns}), or its rows with to_dict('records')"
    elif isinstance(given, bytes | bytearray | memoryview):
        advice = f"{shown(given)}: decode it first"
    elif isinstance(given, PurePath | io.IOBase):
        advice = f"{shown(given)}: read the file with eics.read_prompts"
    elif isinstance(given, Set):
        advice = f"a {type(given).__name__}, which has no order: give a list"
    elif isinstance(given, Mapping) and not _is_encoding(given) and not _is_prompt_object(given):
        fields = ", ".join(map(str, list(given)[:8]))
        advice = (
            f"a dictionary with {fields or 'nothing in it'}: a prompt has 'prompt' (text) or 'tokens' (ids); for "
            "columns, give a list with one object per prompt"
        )
    if advice is not None:
        raise OptionError(f"The prompts must be {_MUST}. Got {advice}.")


def _is_prompt_object(given: Mapping[Any, Any]) -> bool:
    """Whether this is one prompt with its fields, not a table of columns."""
    if isinstance(given.get("prompt"), str):
        return True
    if "prompt" in given or "tokens" not in given:
        return False
    try:
        token_ids(given["tokens"])
    except PromptError:
        return False
    return True


def _has_fields(given: Any) -> bool:
    """Whether this is an `eics.Prompt` or a labelled one."""
    return hasattr(type(given), "__dataclass_fields__")


def _is_encoding(given: Any) -> bool:
    return isinstance(given, Mapping) and "input_ids" in given


def _encoded(given: Mapping[str, Any]) -> tuple[list[tuple[int, ...]], bool]:
    """The rows of a tokenizer's output, cut by its attention mask, and whether it is of a single text."""
    ids, mask = given["input_ids"], given.get("attention_mask")
    array = _as_array(ids)
    try:
        if _is_row(ids) if array is None else array.ndim == 1:
            return [_unpadded(ids, mask)], True
        rows = list(ids) if array is None else list(array)
        if array is not None and len(rows) > 1 and mask is None:
            raise PromptError("rows of equal length may be padded: keep the tokenizer's attention_mask")
        masks = [None] * len(rows) if mask is None else list(mask)
        if len(masks) != len(rows):
            raise PromptError(f"there must be one attention mask per row; got {len(masks)} for {len(rows)}")
        return [_unpadded(*pair) for pair in zip(rows, masks, strict=True)], False
    except (PromptError, TypeError) as error:
        raise OptionError(f"A tokenizer's output must have rows of token ids: {error}.") from None


def _unpadded(ids: Any, mask: Any) -> tuple[int, ...]:
    tokens = token_ids(ids)
    if mask is None:
        return tokens
    kept = [int(bit) for bit in mask]
    if len(kept) != len(tokens) or not set(kept) <= {0, 1}:
        raise PromptError("an attention mask must have one 0 or 1 for each token")
    if 1 in kept and 0 in kept[kept.index(1) : len(kept) - kept[::-1].index(1)]:
        raise PromptError("an attention mask must not leave out tokens in the middle")
    return tuple(token for token, bit in zip(tokens, kept, strict=True) if bit)


def _is_row(ids: Any) -> bool:
    return isinstance(ids, Sequence) and (not ids or _is_whole(ids[0]))


def _array_items(array: Any) -> tuple[list[Any], bool]:
    """The prompts in a tensor or array: a row of ids is one, a 1-d array of text or objects holds many."""
    if array.ndim == 1 and array.dtype.kind in "iu":
        return [tuple(array.tolist())], True
    if array.ndim == 1 and array.dtype.kind in "UTO":
        return prompt_items(array.tolist())
    if array.ndim == 2 and array.shape[0] == 1 and array.dtype.kind in "iu":
        return [tuple(array[0].tolist())], False
    advice = ""
    if array.ndim == 2 and array.dtype.kind in "iu":
        advice = ": its rows may be padded; give the tokenizer's whole output, or a list of rows if none is"
    raise OptionError(f"The prompts must be {_MUST}. Got {_described(array)}{advice}.")


def _as_array(given: Any) -> Any:
    """A torch tensor or numpy array as a numpy array; None if it is neither."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(given, torch.Tensor):
        tensor = given.detach().cpu()
        if tensor.is_floating_point() or tensor.is_complex():
            tensor = tensor.real.to(torch.float64)  # bfloat16 has no numpy counterpart; only its kind is looked at
        return tensor.numpy()
    return given if numpy is not None and isinstance(given, numpy.ndarray) else None


def _described(array: Any) -> str:
    kinds = {"i": "integers", "u": "integers", "f": "floating-point numbers", "b": "truth values"}
    shape = "x".join(map(str, array.shape)) or "a single number"
    return f"an array of {kinds.get(array.dtype.kind, array.dtype.name)} ({shape})"


def _is_series(given: Any) -> bool:
    """A column of numbers is more likely the wrong column than the tokens of one prompt."""
    return type(given).__name__ in ("Series", "Index", "Array", "ChunkedArray")


def _listed(given: Iterable[Any]) -> list[Any]:
    """The items of any iterable; an Arrow column gives Python values."""
    to_list = getattr(given, "to_pylist", None)
    return list(given if to_list is None else to_list())


def _is_whole(value: Any) -> bool:
    if isinstance(value, Integral):
        return not isinstance(value, bool)
    array = _as_array(value)
    return array is not None and array.ndim == 0 and array.dtype.kind in "iu"
