"""What the shell completes besides file names: the names of bundled circuits, prompts, tasks and models.

Nothing heavy is imported here: a completion must come at once.
"""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from eics.data.bundled import bundled


def _circuits() -> Iterable[str]:
    return bundled("circuits", ".json")


def _prompts() -> Iterable[str]:
    return bundled("prompts", ".jsonl")


def _tasks() -> Iterable[str]:
    return bundled("tasks", ".jsonl")


def _models() -> Iterable[str]:
    from eics.models.download.sources import SOURCES, bundled_models

    return [*SOURCES, *bundled_models()]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--circuit": _circuits,
    "--prompts": _prompts,
    "--data": _prompts,
    "--task": _tasks,
    "--reference": _tasks,
    "--model": _models,
    "file": _circuits,
    "source": _circuits,
    "name": _models,
}
"""By the name of an option or argument."""


def completions(parameter: click.Parameter, incomplete: str) -> list[CompletionItem] | None:
    """Bundled names that begin as typed, and files; None if the parameter takes no such names."""
    is_option = isinstance(parameter, click.Option)
    named = [name for name in (parameter.opts if is_option else [parameter.name or ""]) if name in _NAMES]
    takes_text = isinstance(parameter.type, click.Path) or parameter.type is click.STRING
    if not named or not takes_text:
        return None
    names = [CompletionItem(name) for name in _NAMES[named[0]]() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]
