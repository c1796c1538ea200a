"""Pictures of circuits: where nodes stand, how edges run between them, which edges are shown, and the ink.

`layout`, `routes` and `thinning` are plain Python on the graph alone, so that a web page can use them too; only
`picture` and `legend` know matplotlib.
"""

from eics.reporting.drawing.layout import Layout, Row, place_nodes
from eics.reporting.drawing.picture import draw_circuit
from eics.reporting.drawing.routes import route_edges
from eics.reporting.drawing.thinning import Thinned, thin_out

__all__ = ["Layout", "Row", "Thinned", "draw_circuit", "place_nodes", "route_edges", "thin_out"]
