"""Help texts: options in groups, and examples at the end.

A command's docstring ends with its examples: a paragraph after `\\b` whose lines start with `eics`. The group of an
option follows from its name, here, so that it is the same in every command.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from eics.cli.completion import completions

GROUPS: dict[str, str] = {
    "Input": "circuit circuits prompt prompts data task tasks reference references column chat system no-sort limit "
    "shuffle add shuffle-seed answer record prompt-id rows label match generate temperature drop-function-words "
    "matched group dev-share ensemble top-edges share min-score signed no-prune only-kept against against-prompts "
    "paired",
    "Interventions": "noise ablate patch patch-read steer kind strengths nodes off-circuit at vector interventions "
    "damage-seed",
    "Score": "preset alpha target residual parts metric emergence positions readout tokens linearization calibration "
    "level terms curve laplacian details against-random allow-changed-weights restore",
    "How it is computed": "mode factorization seed node-probes macro-probes steps top-k memory batch-size method "
    "select edges ablation shares resamples coverage family-prompts perturbed controls all-eics seeds noisy-edge "
    "batch repeats seconds straightforward growth keep-moments one-at-a-time samples",
    "Model": "model adapter shape dtype device trust-remote-code",
    "Output": "out to picture report resume overwrite markdown json all-scores max-edges title",
    "Display": "quiet verbose debug help version",
}
"""The names of options, without dashes, under the heading that shows them."""


class Command(click.Command):
    """A command whose help has groups of options and, last, examples; its names are completed by the shell."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        for parameter in self.params:
            _complete_names(parameter)

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The docstring without its examples."""
        whole, self.help = self.help, prose(self)
        try:
            super().format_help_text(context, formatter)
        finally:
            self.help = whole

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by group, then the examples."""
        write_options(self, context, formatter)
        write_examples(self, formatter)


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, the commands, then the examples."""
        write_options(self, context, formatter)
        self.format_commands(context, formatter)
        write_examples(self, formatter)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its whole first sentence."""
        commands = {name: self.get_command(context, name) for name in self.list_commands(context)}
        listed = [(name, command.get_short_help_str(limit=1000)) for name, command in commands.items() if command]
        with formatter.section("Commands"):
            formatter.write_dl(listed)


def _complete_names(parameter: click.Parameter) -> None:
    """Offers bundled names where the parameter takes one."""
    usual = parameter.shell_complete

    def complete(context: click.Context, incomplete: str) -> list[CompletionItem]:
        names = completions(parameter, incomplete)
        return usual(context, incomplete) if names is None else names

    parameter.shell_complete = complete  # type: ignore[method-assign, assignment]


def write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """A section for each group that the command has options of."""
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*GROUPS, "Other options")}
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if row is not None and isinstance(parameter, click.Option):
            rows[heading_of(parameter)].append(row)
    for heading, listed in rows.items():
        if listed:
            with formatter.section(heading):
                formatter.write_dl(listed)


def heading_of(parameter: click.Parameter) -> str:
    """The heading under which help shows an option."""
    names = {name.lstrip("-") for name in parameter.opts}
    return next((heading for heading, listed in GROUPS.items() if names & set(listed.split())), "Other options")


def write_examples(command: click.Command, formatter: click.HelpFormatter) -> None:
    """The examples of the docstring, as they are."""
    listed = list(examples(command))
    if listed:
        with formatter.section("Example" if len(listed) == 1 else "Examples"):
            for line in listed:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def examples(command: click.Command) -> Iterator[str]:
    """The lines of the docstring's examples; a command may go on in the next line after a backslash."""
    for paragraph in _paragraphs(command):
        if _is_example(paragraph):
            yield from paragraph.splitlines()[1:]


def prose(command: click.Command) -> str:
    """The docstring without its examples."""
    return "\n\n".join(paragraph for paragraph in _paragraphs(command) if not _is_example(paragraph))


def _paragraphs(command: click.Command) -> list[str]:
    return re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))


def _is_example(paragraph: str) -> bool:
    return re.match(r"\s*\x08\s*\n\s*eics ", paragraph) is not None
