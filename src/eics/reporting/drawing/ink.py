"""How edges and nodes look: width from attribution, colour from share of inconsistency.

The two channels never mix: attribution does not change the colour, nor inconsistency the width. Without shares, the
colour shows the port through which an edge enters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eics.circuits.graph import Edge

PORT_COLOURS = {"q": "#0072B2", "k": "#D55E00", "v": "#009E73"}  # Okabe-Ito: safe for colour-blind readers
WHOLE = "#4D4D4D"
NO_SHARE = "#BDBDBD"
DASHED = (0, (3.5, 1.2))

_THINNEST, _WIDEST = 0.7, 5.0  # points
_PLAIN = 1.2  # without attributions
_LIGHTEST, _DARKEST = 0.17, 0.92  # part of the colour map that is used: its light end is invisible on white


@dataclass(frozen=True)
class Ink:
    """Widths, dashes and colours of a picture's edges and nodes."""

    scores: Mapping[Edge, float] | None
    shares: Mapping[Edge, float] | None
    node_shares: Mapping[str, float] | None

    @cached_property
    def largest_score(self) -> float:
        """The largest |attribution|; 0 without attributions."""
        return max(map(abs, (self.scores or {}).values()), default=0.0)

    def width(self, score: float) -> float:
        """Width in points: linear in |attribution|, above a visible minimum."""
        return _THINNEST + (_WIDEST - _THINNEST) * abs(score) / self.largest_score

    def edge_width(self, edge: Edge) -> float:
        return self.width((self.scores or {}).get(edge, 0.0)) if self.largest_score else _PLAIN

    def edge_style(self, edge: Edge) -> Any:
        return DASHED if (self.scores or {}).get(edge, 0.0) < 0 else "solid"

    def edge_colour(self, edge: Edge) -> Any:
        """By share, grey if this edge has none; by port if there are no shares at all."""
        if self.shares is None:
            return PORT_COLOURS.get(edge.port or "", WHOLE)
        return self.edge_scale.to_rgba(self.shares[edge]) if edge in self.shares else NO_SHARE

    def node_colour(self, node: str) -> Any:
        if self.node_shares is None or node not in self.node_shares:
            return None
        return self.node_scale.to_rgba(self.node_shares[node])

    @cached_property
    def edge_scale(self) -> Any:
        return _scale(self.shares or {})

    @cached_property
    def node_scale(self) -> Any:
        return _scale(self.node_shares or {})


def _scale(shares: Mapping[Any, float]) -> Any:
    """The colours of shares from 0 to the largest."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    steps = [_LIGHTEST + (_DARKEST - _LIGHTEST) * step / 255 for step in range(256)]
    colours = ListedColormap([colormaps["magma_r"](step) for step in steps])
    return ScalarMappable(Normalize(0.0, max(shares.values(), default=0.0) or 1.0), colours)
