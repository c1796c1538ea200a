"""The runner of pages finds what it is there to find."""

import pytest

from support.doc_pages import (
    PageError,
    _in_process,
    blocks_of,
    commands_of,
    complaints,
    indented_code,
    matches,
    run_page,
)


def page_of(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def run(tmp_path, text, **options):
    (tmp_path / "reader").mkdir()
    return run_page(page_of(tmp_path, text), tmp_path / "reader", **options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```bash\neics scoer\n```", r"page.md:1: exit code 2 from\n\n  eics scoer\n\n.*No such command"),
        ("\n```bash\nls nothing-here | cat\n```", "page.md:2: exit code"),
        ("```python\nx = 1\nx + y\n```", r"page.md:3: NameError: .*\n\n  x \+ y"),
        ("```python\n>>> 1 + 1\n3\n```", "page.md:1: an example prints something else"),
        ("```python\n1 + 1\n```\n\n```text\n3\n```", "the page shows\n\n3\n\nbut this was printed:\n\n2"),
        ("```bash\necho one two\n```\n\n```text\none three\n```", "but this was printed"),
        ("```bash\neics --version\n```\n```text\neics 0.0.0-none\n```", "but this was printed"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, says):
    with pytest.raises(PageError, match=f"(?s){says}"):
        run(tmp_path, text)


def test_blocks_share_a_folder_and_their_names(tmp_path):
    text = """
<!-- file: words.json -->

```json
["a", "b"]
```

```bash
cat words.json > copy.json   # a comment
cat copy.json \\
    words.json
```

```text
["a", ...] ["a",   "b"]
```

```python
from pathlib import Path
words = eval(Path("copy.json").read_text())
```

```python
>>> len(words)
2
```

```python
[word.upper() for word in words]
```

```text
['A', 'B']
```
"""
    assert run(tmp_path, text) == 4


def test_a_setting_before_a_command_holds_for_it(tmp_path):
    """Without a shell, which would load everything again."""
    text = "```bash\nCOLUMNS=60 eics models families\n```\n\n```text\nArchitectures that can be scored ...\n```"
    assert run(tmp_path, text) == 1
    narrow, wide = (_in_process(f"COLUMNS={width} eics models families")[1] for width in (60, 120))
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))
    assert not (tmp_path / "reader" / ".tools").exists()


def test_marked_blocks_are_left_out(tmp_path):
    slow = "*Takes about 3 minutes, downloads 260 MB, last run 2026-11-16.*\n\n```bash\nfalse\n```"
    assert run(tmp_path, f"{slow}\n\n<!-- not run: needs a GPU here -->\n```bash\nfalse\n```") == 0
    (tmp_path / "again").mkdir()
    with pytest.raises(PageError, match="exit code 1"):
        run_page(page_of(tmp_path, slow), tmp_path / "again", slow=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\neics score\n```", "must be ```bash"),
        ("```json\n$ eics score\n```", "must be ```bash"),
        ("```console\neics score\n```", "must be one of bash, python, text, json"),
        ("*Takes long.*\n\n```bash\neics bench\n```", "this mark is not one of those"),
        ("<!-- slow: 3 min -->\n```bash\neics bench\n```", "this mark is not one of those"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_is_named(tmp_path, text, says):
    (block,) = blocks_of(page_of(tmp_path, text))
    assert any(says in complaint and "page.md:" in complaint for complaint in complaints(block))


def test_commands_are_joined_and_freed_of_comments(tmp_path):
    text = '```bash\neics score --prompt "a b" \\\n    --mode fast   # quick\n# nothing\n\neics toy\n```'
    (block,) = blocks_of(page_of(tmp_path, text))
    assert commands_of(block) == ['eics score --prompt "a b" --mode fast', "eics toy"]


def test_code_outside_fences_is_named(tmp_path):
    page = page_of(
        tmp_path, "a\n\n    model = eics.load_model(1)\n\n    C = sqrt(x)\n\n```python\n    eics.score()\n```\n"
    )
    assert indented_code(page) == ["page.md:3: code must be in a fence, so that it is run: model = eics.load_model(1)"]


def test_digits_and_spaces():
    assert matches("a  0.12  b", "a 0.12\nb\n")
    assert not matches("a 0.12 b", "a 0.121 b")
    assert matches("a ... c", "a\nb b\nc")
    assert not matches("a ... c", "a b d")
