"""The rooms of `src/eics`: what is at the top, and who may import whom (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

import eics

TOP = Path(eics.__file__).parent
GROUPS = (
    "errors",
    "data",
    "linalg circuits",
    "linearized models",
    "transformer",
    "scoring",
    "reporting",
    "studies",
    "cli",
)
RANK = {room: rank for rank, group in enumerate(GROUPS) for room in group.split()}
SEEN_BY_REPORTING = {"errors", "circuits", "reporting", "scoring.options", "scoring.result", "scoring.records"}
EXCEPTION = ("scoring/result.py", "reporting")  # plot, to_pandas and _repr_html_ of results, inside the methods


def imported(tree):
    """Modules below `eics`, dotted, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[2] for name in node.names if name.name.split(".")[0] == "eics")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "eics":
            below = (node.module or "").partition(".")[2]
            yield from (below or name.name for name in node.names)


@pytest.mark.parametrize("path", sorted(TOP.glob("*/**/*.py")), ids=lambda path: path.relative_to(TOP).as_posix())
def test_imports_go_one_way(path):
    room = path.relative_to(TOP).parts[0]
    for module in set(imported(ast.parse(path.read_text()))) - {"__version__"}:
        other = module.split(".")[0]
        if (path.relative_to(TOP).as_posix(), other) == EXCEPTION:
            continue
        assert other == room or RANK[other] < RANK[room], f"{room} must not import eics.{module}"
        if room == "reporting":
            assert {other, ".".join(module.split(".")[:2])} & SEEN_BY_REPORTING, f"reporting must not see eics.{module}"


def test_the_top_is_the_rooms():
    found = {entry.name for entry in TOP.iterdir()} - {"__pycache__"}
    assert found == {*RANK} - {"errors"} | {"__init__.py", "__main__.py", "errors.py", "py.typed"}
    for room in set(RANK) - {"errors"}:
        assert len(ast.get_docstring(ast.parse((TOP / room / "__init__.py").read_text())) or "") > 200, room
