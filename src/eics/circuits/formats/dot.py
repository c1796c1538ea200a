"""Writes DOT for graphviz: the kept edges, layers from bottom to top, wider lines for larger scores."""

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Writer
from eics.circuits.graph import Kind, Node
from eics.errors import printable

NAME = "dot"
_SHAPES = {Kind.INPUT: "house", Kind.HEAD: "ellipse", Kind.MLP: "box", Kind.LOGITS: "invhouse", Kind.OTHER: "ellipse"}


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes a digraph; a port is the label of its edge."""
    circuit = graph.circuit()
    largest = max((abs(score) for score in circuit.scores.values()), default=0.0)
    lines = ["digraph circuit {", " rankdir=BT;"]
    lines += [f" {_quoted(name)} [shape={_SHAPES[Node.parse(name).kind]}];" for name in circuit.order]
    for edge in circuit.edges:
        attributes = [f"label={_quoted(edge.port)}"] if edge.port else []
        if edge in circuit.scores:
            score = circuit.scores[edge]
            width = 0.5 + 3.5 * abs(score) / largest if largest else 0.5
            attributes += [f"score={_quoted(repr(score))}", f"penwidth={width:.2f}"]
        suffix = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f" {_quoted(edge.source)} -> {_quoted(edge.target)}{suffix};")
    left_out = len(graph.edges) - len(circuit.edges)
    notes = (f"DOT draws the kept edges: {left_out} others were left out.",) if left_out else ()
    return "\n".join([*lines, "}"]) + "\n", notes


def _quoted(text: str) -> str:
    clean = printable(text, lines=True)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


WRITER = Writer(NAME, "DOT for graphviz", (".dot", ".gv"), write)
