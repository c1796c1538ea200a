"""The pages of a comparison, from its document alone: two models, or two sets of prompts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eics import __version__
from eics.data.files import write_text
from eics.reporting.page.fields import Fields, check_format
from eics.reporting.page.shell import build_page, check_report_path
from eics.reporting.page.two_models import models_data
from eics.reporting.page.two_sets import sets_data

_PAGES: dict[str, tuple[str, Callable[[Fields], dict[str, Any]]]] = {
    "models": ("models", models_data),
    "prompts": ("sets", sets_data),
}
"""The page of each kind of comparison, and its data."""


def write_comparison_page(document: Mapping[str, Any], path: str | Path, *, notes: Sequence[str] = ()) -> None:
    """Writes the page of a comparison to an HTML file, which appears whole, in place of an earlier one.

    Args:
        document: what `eics compare` wrote as `compare.json`.
        path: the file to write, ending in .html.
        notes: remarks to show at the top of the page.
    """
    check_report_path(Path(path))
    write_text(path, comparison_page(document, notes))


def comparison_page(document: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The page as text; refuses a document that is damaged, of a later version or of another kind."""
    fields = Fields(document, "comparison")
    check_format(fields, "eics-comparison", 1, "eics compare")
    page, data_of = _PAGES[fields.one_of("kind", list(_PAGES))]
    data = data_of(fields)
    return build_page(page, {"source": None, "eics": __version__} | data | {"notes": [*notes, *data["notes"]]})
