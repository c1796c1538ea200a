"""Text of figures that came from files: control characters are no XML and bidirectional ones disorder a label."""

from typing import Any

from eics.errors import printable


def clean_texts(figure: Any) -> None:
    """Makes every text of a figure printable: titles, labels, legends and tick labels."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            texts = [label.get_text() for label in axis.get_ticklabels()]
            clean = [printable(text, lines=True) for text in texts]
            if clean != texts:  # only then: fixing the ticks of a numeric axis would cost it its formatter
                axis.set_ticks(axis.get_ticklocs(), labels=clean)
    for text in figure.findobj(Text):
        if printable(text.get_text(), lines=True) != text.get_text():
            text.set_text(printable(text.get_text(), lines=True))
