"""Wording shared by the reports of all studies: enumerations, Markdown tables, escaping.

Verdicts live with each study (`damage/words.py`, `tracking/words.py`, `validation/sentences.py`) and follow one rule:
an interval that includes "no effect" gives "no evidence", never "no effect".
"""

from collections.abc import Iterable, Sequence


def enumerate_words(words: Sequence[str]) -> str:
    """A list as English writes it.

    >>> enumerate_words(["noise"]), enumerate_words(["noise", "patch", "steer"])
    ('noise', 'noise, patch and steer')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def capitalized(text: str) -> str:
    """The same text with a capital first letter; `str.capitalize` would lower the rest."""
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "task"), plural(3, "task")
    ('1 task', '3 tasks')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; cells are escaped."""
    lines = [[escape_markdown(str(cell)) for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(items: Iterable[str]) -> str:
    """A bulleted list; items are taken as Markdown."""
    return "\n".join(f"- {item}" for item in items)


def markdown_page(parts: Iterable[str]) -> str:
    """Headings, paragraphs, lists and tables, separated by blank lines."""
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """Names and reasons come from users' files: none of them may end a cell or start markup."""
    for mark in ("\\", "|", "<", "[", "`", "*"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
