"""Every command of README and docs/ runs, in the order of the page, and prints what the page shows."""

import re

import pytest

from support.doc_pages import NOT_RUN, PAGES, ROOT, blocks_of, commands_of, complaints, indented_code, run_page

INLINE = re.compile(r"`(eics [a-z][^`]*)`")
OUTPUT = re.compile(r"(--out|--picture|--report|--markdown) (\S+)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
NAMED = re.compile(r"`((?:[a-z_]+/)+[\w-]+\.(?:py|json))`")
LINKED = [*PAGES, ROOT / "CHANGELOG.md"]
OTHERS = {"--no-deps"}  # options of other programs that the pages mention


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_page_runs(page, tmp_path):
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_marked(page):
    assert not [*indented_code(page), *(complaint for block in blocks_of(page) for complaint in complaints(block))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_command_is_refused_for_the_output_of_another(page):
    """Slow commands too, which would say so only after half an hour."""
    written = {}
    for block in blocks_of(page):
        for command in commands_of(block) if block.language == "bash" and not block.is_left_out else ():
            for option, path in OUTPUT.findall(command):
                goes_on = {"--overwrite", "--resume", "||"} & set(
                    command.split()
                )  # `|| echo`: the page shows the error
                assert goes_on or path not in written, f"{block.where}: {option} {path} exists after {written[path]}"
                written[path] = block.where


def test_most_commands_run_in_ci():
    """A mark is an exception."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.runs]
    run = [block for block in blocks if not block.is_slow and not block.is_left_out]
    assert len(run) > 0.6 * len(blocks)
    reasons = [NOT_RUN.match(block.mark)["reason"] for block in blocks if block.is_left_out]
    assert all(len(reason.split()) > 2 for reason in reasons)


def command_tree():
    """Each command by its path, such as ('circuit', 'show'), with its options."""
    from eics.cli import main

    tree, pending = {}, [((), main)]
    while pending:
        path, command = pending.pop()
        tree[path] = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        pending += [((*path, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return tree


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_sentences_exist(page):
    """`eics NAME --option` in running text: the command and its options."""
    tree, text = command_tree(), page.read_text(encoding="utf-8")
    for inline in INLINE.findall(re.sub(r"```.*?```", "", text, flags=re.S)):
        words = inline.split()[1:]
        path = max((p for p in tree if tuple(words[: len(p)]) == p), key=len)
        assert path or words[0].startswith("-"), f"{name(page)}: no such command in `{inline}`"
        unknown = [option for option in OPTION.findall(inline) if option not in tree[path] | {"--help", "--version"}]
        assert not unknown, f"{name(page)}: `eics {' '.join(path)}` has no {unknown[0]} in `{inline}`"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_in_sentences_exist(page):
    """`--option` in running text belongs to some command."""
    options = set().union(*command_tree().values(), OTHERS, {"--help", "--version"})
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for span in re.findall(r"`([^`]*)`", text):
        if not span.startswith(("pip", "python", "make", "git", "http")):
            unknown = [option for option in OPTION.findall(span) if option not in options]
            assert not unknown, f"{name(page)}: no command has {unknown[0]}, in `{span}`"


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)


def anchors(page):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: no such file as {path}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {path or 'this page'} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_pages_name_exist(page):
    """`scoring/batch.py` is short for `src/eics/scoring/batch.py`."""
    for path in NAMED.findall(prose(page)):
        assert (ROOT / path).exists() or (ROOT / "src/eics" / path).exists(), f"{name(page)}: no such file as {path}"


def test_every_page_can_be_reached_from_the_readme():
    linked = {(ROOT / path).resolve() for path, _ in LINK.findall(prose(ROOT / "README.md"))}
    assert not [name(page) for page in PAGES if page not in linked | {ROOT / "README.md"}]
