"""The rooms of `src/eics`: what is at the top, and who may import whom (docs/architecture.md)."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import eics
from eics.linalg.operators import LinearOperator

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
_SEEN = "batch_sentences options result records numbers verdict"
SEEN_BY_REPORTING = {"errors", "data", "circuits", "reporting"}
SEEN_BY_REPORTING |= {f"scoring.{module}" for module in _SEEN.split()}
MODULES = "alpha baselines discovery drawing formats interventions laplacian linear_file plots report testing tracking"
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


def test_public_names_come_from_one_table():
    """Each resolves, to a function or class if it is one, whatever was imported before."""
    for name in eics.__all__:
        assert getattr(eics, name) is not None
    for name in MODULES.split():
        assert isinstance(getattr(eics, name), ModuleType)
    assert callable(eics.score)
    assert callable(eics.damage)
    with pytest.raises(AttributeError, match="no attribute 'scores'"):
        eics.scores  # noqa: B018


def test_the_operator_core_stays_small():
    assert sum(callable(value) or isinstance(value, property) for value in vars(LinearOperator).values()) <= 12


@pytest.mark.parametrize(
    "path", ["scoring/sheaf.py", "scoring/emergence.py", "scoring/parts.py", "linearized/paths.py"]
)
def test_the_terms_know_engines_and_not_heads(path):
    names = {node.id for node in ast.walk(ast.parse((TOP / path).read_text())) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(ast.parse((TOP / path).read_text())) if isinstance(node, ast.Attribute)}
    assert not {name for name in names if name == "z" or "head" in name.lower() or "writer" in name.lower()}
    assert "engine" in names


@pytest.mark.parametrize("room", sorted(set(RANK) - {"errors", "data"}))
def test_tests_mirror_the_rooms(room):
    assert list((Path(__file__).parent / room).glob("test_*.py"))
