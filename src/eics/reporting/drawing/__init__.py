"""Pictures of circuits: where nodes stand, how edges run between them, which edges are shown, and how they look.

`layout` and `routes` work on the graph alone, so the HTML report uses them too; `picture` and `ink` draw with
matplotlib.
"""

from eics.reporting.drawing.ink import Thinned, thin_out
from eics.reporting.drawing.layout import Layout, Row, place_names, place_nodes
from eics.reporting.drawing.picture import draw_circuit
from eics.reporting.drawing.routes import route_edges

__all__ = ["Layout", "Row", "Thinned", "draw_circuit", "place_names", "place_nodes", "route_edges", "thin_out"]
