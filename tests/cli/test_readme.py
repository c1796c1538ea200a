"""Every `eics` command in the README runs, in the order of the README."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from eics.cli import main

README = Path(__file__).parents[2] / "README.md"


def test_commands_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("eics ")]
    assert commands
    for command in commands:
        arguments = shlex.split(command, comments=True)[1:]
        if arguments[0] == "toy":
            arguments += ["--seeds", "3"]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, f"{command}\n{result.output}"
