"""Help: every command has an example that parses, options in groups, lines that fit; shells complete names."""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from eics.cli import main
from eics.cli.help import examples, heading_of


def walk(command, path=()):
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from walk(below, (*path, name))


COMMANDS = dict(walk(main))
named = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def commands_in(path):
    """The examples as lists of arguments, continued lines joined."""
    text = "\n".join(examples(COMMANDS[path])).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines()]


@named
def test_help_fits_and_groups_its_options(path):
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert "Other options" not in result.output  # a new option needs a heading in `eics/cli/help.py`
    assert re.search(r"^Examples?:\n  eics ", result.output, flags=re.M)
    for option in COMMANDS[path].params:
        assert not isinstance(option, click.Option) or option.help, option.name


@named
def test_examples_parse(path):
    found = commands_in(path)
    assert found
    for arguments in found:
        command, context, rest = main, click.Context(main, info_name="eics"), arguments
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, rest)
        assert command.make_context(name, list(rest), parent=context).args == []  # nothing is left over


@pytest.mark.parametrize("path", [(), ("circuit",), ("circuit", "show"), ("circuit", "draw"), ("models", "list")])
def test_cheap_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in commands_in(path):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output


def test_every_command_that_loads_a_model_can_be_told_to_trust_it():
    """The error names the option, so it must be there."""
    loading = {path for path, command in COMMANDS.items() if "model" in {option.name for option in command.params}}
    assert {("score",), ("bench",), ("circuit", "show")} < loading
    for path in loading:
        assert "--trust-remote-code" in {name for option in COMMANDS[path].params for name in option.opts}, path


def test_damage_names_its_own_default_mode():
    """The presets say exact, and `eics damage` does not follow them there."""
    modes = {
        name: option.help.split("  ")[-1]
        for name in ("score", "damage")
        for option in main.commands[name].params
        if option.name == "mode"
    }
    assert modes == {"score": "[paper: exact, well-posed: exact, calibrated: fast]", "damage": "[default: fast]"}


def test_headings_follow_names():
    score = {parameter.name: heading_of(parameter) for parameter in main.commands["score"].params}
    assert (score["circuit"], score["alpha"], score["mode"]) == ("Input", "Score", "How it is computed")
    assert (score["device"], score["out"], score["quiet"]) == ("Model", "Output", "Display")


def completed(line, shell="bash"):
    """What the shell is offered for a line, in a process of its own; fails if torch was imported for it."""
    words = line.split(" ")
    code = (
        "import sys, atexit\natexit.register(lambda: 'torch' in sys.modules and print('T'))\nfrom eics.cli import main"
    )
    asked = {"_EICS_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-c", f"{code}\nmain(prog_name='eics')"]
    ran = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert "T" not in ran.stdout.splitlines()
    return ran.stdout


def test_shells_complete_bundled_names():
    assert "plain,facts\n" in completed("eics score --circuit f")
    assert "plain,people\n" not in completed("eics score --circuit f")
    models = completed("eics calibrate --model ")
    assert "plain,people-0\n" in models
    assert "plain,smollm2\n" in models
    assert "file," in models  # a folder is as good
    assert "plain,people-withheld\n" in completed("eics damage --prompts people-")
    assert "plain,facts-by-hand\n" in completed("eics circuit show facts-")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(shell):
    environment = os.environ | {"_EICS_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", "from eics.cli import main; main(prog_name='eics')"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"{shell}_complete" in ran.stdout


@named
def test_every_command_that_loads_a_model_has_the_flag_that_errors_name(path):
    options = {name for option in COMMANDS[path].params for name in option.opts}
    assert ("--trust-remote-code" in options) == ("--model" in options)


@named
def test_the_help_of_mode_explains_each_choice(path):
    for option in COMMANDS[path].params:
        if option.name == "mode" and "score" in path:
            assert all(f"{choice}:" in option.help for choice in option.type.choices)
            assert "small-alpha" not in option.help.partition("limit:")[0]  # `fast` is an estimate at the asked alpha
