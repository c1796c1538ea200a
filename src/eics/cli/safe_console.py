"""A console on which text from files cannot move the cursor, set colours, ring bells or reverse a line."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from eics.errors import printable


class SafeConsole(Console):
    """Rich's console with control and bidirectional characters of all text as visible escapes."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Strings become text here, those in the cells of tables too, before their width is measured."""
        return super().render_str(printable(text, lines=True), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Whatever did not come as a string; rich's own control codes are marked as such and pass."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, lines=True), segment.style)
