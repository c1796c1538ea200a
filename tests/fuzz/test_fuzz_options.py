"""Option values that nobody meant, from Python and on the command line: a score or one clear line."""

from contextlib import chdir
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics.circuits.formats import read_graph
from eics.cli import main
from eics.cli.score import score as score_command
from eics.linearized.explicit_file import load_linear, save_linear
from eics.reporting.page import read_readable
from eics.scoring.calibration.file import load_calibration
from eics.scoring.options import CHOICES
from eics.scoring.record_file import RecordFile
from eics.scoring.records import to_line
from eics.studies.validation.data import read_labelled
from support.circuits import build
from support.hostile import ANY_JSON, FUZZ, ODD, ODD_NUMBERS, ODD_TEXTS, one_line, outcome, run

CIRCUIT = build(4, batch=None, density=0.4)
OBJECTS = st.sampled_from([object(), int, b"x", 1j, (), {1}, range(2), float, Ellipsis, lambda: 0])


@st.composite
def python_options(draw) -> dict:
    """Right choices, and one to three options of any kind: of the wrong type or size, or such as do not exist."""
    names = [
        *eics.PAPER.keys(),
        "preset",
        "answer",
        "tokens",
        "batch_size",
        "ids",
        "against_random",
        "details",
        "modes",
    ]
    options = {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        right = st.sampled_from(CHOICES.get(name, (1, 4, 0.5, "auto", True)))
        options[name] = draw(right | st.sampled_from(ODD_NUMBERS) | ODD | OBJECTS | ANY_JSON)
    return options


@FUZZ
@given(python_options())
def test_options_of_score(options):
    result = outcome(eics.score, CIRCUIT, **options)
    if result is not None:
        repr(result)
        outcome(to_line, result)


@FUZZ
@given(st.dictionaries(st.sampled_from([*eics.PAPER.keys(), "x", ""]), ODD | OBJECTS, max_size=3))
def test_options_by_themselves(values):
    outcome(eics.PAPER.with_, **values)
    known = {name: value for name, value in values.items() if name in list(eics.PAPER)}
    outcome(eics.Options, **known)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    save_linear(CIRCUIT, folder / "c.safetensors")
    return folder


VALUES = st.one_of(
    st.sampled_from(
        [*ODD_TEXTS, *(str(number)[:600] for number in ODD_NUMBERS), "auto", "1,2,3", "a0.h0=1", "m0@last=2"]
    ),
    st.sampled_from([choice for choices in CHOICES.values() for choice in choices]),
    st.sampled_from(
        ["1", "4", "0.5", "1e-3", "-", "o.jsonl", "o.csv", "o.parquet", "o.html", "o.svg", "./o.jsonl/x", "."]
    ),
    st.text(max_size=8),
).filter(lambda text: "\0" not in text and text.encode("utf-8", "ignore").decode() == text)  # what a shell can pass


@st.composite
def arguments(draw) -> list[str]:
    """One to four options of `eics score`, each with a value if it takes one."""
    parameters = [p for p in score_command.params if isinstance(p, click.Option) and p.name not in ("circuit", "model")]
    words = ["--mode", draw(st.sampled_from(CHOICES["mode"]))]
    for option in draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=4)):
        words.append(draw(st.sampled_from(option.opts)))
        if not option.is_flag:
            words.append(draw(VALUES))
    return words


@FUZZ
@given(arguments())
def test_the_command_line_of_score(folder, words):
    one_line(run("score", "--circuit", str(folder / "c.safetensors"), *words))


@FUZZ
@given(arguments())
def test_the_command_line_of_score_with_a_model(folder, words):
    """The model does not exist: options are checked before it is looked for, or with it."""
    model = ["--model", str(folder / "nowhere"), "--circuit", "people"]
    one_line(run("score", *model, *words))


@FUZZ
@given(st.lists(VALUES | st.sampled_from([*main.commands, "--help", "--debug", "--", "-h", "--quiet"]), max_size=3))
def test_any_words(folder, words):
    """Commands that start work on their own need more than three odd words."""
    if words and words[0] in ("toy", "bench", "validate", "track", "damage", "models", "discover"):
        words = [words[0], "--nothing", *words[1:]]
    result = run(*words)
    if "--debug" not in words:
        one_line(result)


READERS = (eics.read_prompts, read_labelled, eics.read_records, load_calibration, load_linear, eics.load_circuit,
           read_graph, read_readable, lambda path: RecordFile(Path(path), resume=True))  # fmt: skip
SUFFIXES = ("", ".jsonl", ".json", ".csv", ".parquet", ".safetensors", ".pt")


@FUZZ
@given(st.sampled_from(READERS), st.sampled_from(ODD_TEXTS) | st.text(max_size=8), st.sampled_from(SUFFIXES))
def test_names_of_files(folder, reader, name, suffix):
    with chdir(folder):
        outcome(reader, name + suffix)
