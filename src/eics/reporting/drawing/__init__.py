"""Pictures of circuits: where nodes stand, how edges run between them, which edges are shown, and how they look.

`layout`, `routes` and `thinning` work on the graph alone, so the HTML report uses them too; `picture`, `legend` and
`ink` draw with matplotlib.
"""

from eics.reporting.drawing.layout import Layout, Row, place_nodes
from eics.reporting.drawing.picture import draw_circuit
from eics.reporting.drawing.routes import route_edges
from eics.reporting.drawing.thinning import Thinned, thin_out

__all__ = ["Layout", "Row", "Thinned", "draw_circuit", "place_nodes", "route_edges", "thin_out"]
