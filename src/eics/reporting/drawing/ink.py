"""What an edge or a node looks like: width from its attribution, colour from its share of inconsistency.

The two channels never mix: attribution changes no colour, inconsistency no width. Without shares the colour tells
the port that an edge enters through.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eics.circuits.graph import Edge

PORT_COLOURS = {"q": "#0072B2", "k": "#D55E00", "v": "#009E73"}  # Okabe-Ito: readable without colour vision
WHOLE = "#4D4D4D"
NO_SHARE = "#BDBDBD"
DASHED = (0, (3.5, 1.2))

_THINNEST, _WIDEST = 0.7, 5.0  # points
_PLAIN = 1.2  # where no attribution is known
_LIGHTEST, _DARKEST = 0.17, 0.92  # of the colour map: its light end would not be seen on white


@dataclass(frozen=True)
class Ink:
    """The look of a picture's edges and nodes, from the numbers that were given."""

    scores: Mapping[Edge, float] | None
    shares: Mapping[Edge, float] | None
    node_shares: Mapping[str, float] | None

    @cached_property
    def largest_score(self) -> float:
        """The largest |attribution|; 0 where none is known."""
        return max(map(abs, (self.scores or {}).values()), default=0.0)

    def width(self, score: float) -> float:
        """Points, linear in |attribution| above a least width that can still be seen."""
        return _THINNEST + (_WIDEST - _THINNEST) * abs(score) / self.largest_score

    def edge_width(self, edge: Edge) -> float:
        """Points."""
        return self.width((self.scores or {}).get(edge, 0.0)) if self.largest_score else _PLAIN

    def edge_style(self, edge: Edge) -> Any:
        """Dashed where the attribution is negative."""
        return DASHED if (self.scores or {}).get(edge, 0.0) < 0 else "solid"

    def edge_colour(self, edge: Edge) -> Any:
        """By share; grey where the record has none for this edge; by port where no shares were given."""
        if self.shares is None:
            return PORT_COLOURS.get(edge.port or "", WHOLE)
        return self.edge_scale.to_rgba(self.shares[edge]) if edge in self.shares else NO_SHARE

    def node_colour(self, node: str) -> Any:
        """By share, or None."""
        if self.node_shares is None or node not in self.node_shares:
            return None
        return self.node_scale.to_rgba(self.node_shares[node])

    @cached_property
    def edge_scale(self) -> Any:
        """The colours of the edges' shares, from 0 to the largest."""
        return _scale(self.shares or {})

    @cached_property
    def node_scale(self) -> Any:
        """The colours of the nodes' shares, from 0 to the largest."""
        return _scale(self.node_shares or {})


def _scale(shares: Mapping[Any, float]) -> Any:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    steps = [_LIGHTEST + (_DARKEST - _LIGHTEST) * step / 255 for step in range(256)]
    colours = ListedColormap([colormaps["magma_r"](step) for step in steps])
    return ScalarMappable(Normalize(0.0, max(shares.values(), default=0.0) or 1.0), colours)
