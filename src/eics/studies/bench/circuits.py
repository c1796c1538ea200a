"""Reference circuits, the same on every machine, and random circuits of any size for growth curves.

| name | nodes | edges |
|---|---|---|
| `medium` | `input`, 11 heads, 3 MLPs, `logits` | 44, plain |
| `heads` | `medium` without its MLPs | the remaining ones |
| `ioi` | `input`, 67 heads, 12 MLPs, `logits` | 756; heads are entered through ports, one q and one k per two v |

They are synthetic: their sizes and kinds of edges are those of circuits in the literature, their wiring comes from
hashes. They are laid out for 12 layers and stretched over the depth of deeper models.

>>> medium(12, 12)
Circuit(16 nodes, 44 edges, sources: input, sinks: logits)
>>> ioi(12, 12)
Circuit(81 nodes, 756 edges, sources: input, sinks: logits)
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import CircuitError

_DEPTH = 12
_MEDIUM_HEADS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
_MEDIUM_MLPS = (0, 4, 8)
_MOST_PER_LAYER = 6  # heads of one layer in `ioi`


def medium(layers: int, heads: int) -> Circuit:
    """16 nodes, 44 edges: every inner node is joined to `input` and to `logits`, and 16 edges run between them."""
    _check_depth("medium", layers, heads, 1)
    inner = [*(_head(depth, 0, layers, heads) for depth in _MEDIUM_HEADS), *(_mlp(d, layers) for d in _MEDIUM_MLPS)]
    return Circuit([*_ends(inner), *_chosen(_pairs(inner), 16, "medium")], name="medium")


def heads_only(layers: int, heads: int) -> Circuit:
    """`medium` without its MLPs."""
    edges = medium(layers, heads).edges
    return Circuit([edge for edge in edges if Kind.MLP not in {Node.parse(end).kind for end in edge[:2]}], name="heads")


def ioi(layers: int, heads: int) -> Circuit:
    """81 nodes, 756 edges, heads entered through ports."""
    _check_depth("ioi", layers, heads, _MOST_PER_LAYER)
    by_layer = [_MOST_PER_LAYER] * 7 + [_MOST_PER_LAYER - 1] * 5  # 67 heads
    inner = [_head(depth, index, layers, heads) for depth, count in enumerate(by_layer) for index in range(count)]
    inner += [_mlp(depth, layers) for depth in range(_DEPTH)]
    ends = [_with_port(edge) for edge in _ends(inner)]
    pairs = [_with_port(edge) for edge in _pairs(inner)]
    return Circuit([*ends, *_chosen(pairs, 756 - len(ends), "ioi")], name="ioi")


REFERENCES: dict[str, Callable[[int, int], Circuit]] = {"medium": medium, "heads": heads_only, "ioi": ioi}


def random_circuit(
    nodes: int, edges: int, seed: int = 0, *, layers: int = 12, heads: int = 12, ports: bool = False
) -> Circuit:
    """A circuit with this many nodes and edges in which every node lies on a path from `input` to `logits`.

    Three of fourteen inner nodes are MLPs (at most one per layer), the others heads, spread over the depth. With
    `ports`, an edge into a head enters through one of its three ports.
    """
    inner = _spread_sites(nodes - 2, layers, heads)
    kept = _backbone(inner, seed)
    allowed = [*_ends(inner), *_pairs(inner), Edge("input", "logits")]
    if ports:
        kept = [_with_port(edge) for edge in kept]
        allowed = [ported for edge in allowed for ported in _through(edge, "qkv")]
    more = sorted(set(allowed) - set(kept))
    if not len(kept) <= edges <= len(kept) + len(more):
        raise CircuitError(
            f"A random circuit of {nodes} nodes must have {len(kept)} to {len(kept) + len(more)} edges. Got {edges}."
        )
    return Circuit([*kept, *_chosen(more, edges - len(kept), seed)], name=f"random {nodes} nodes, {edges} edges")


def _spread_sites(count: int, layers: int, heads: int) -> list[str]:
    mlps = min(layers, round(count * 3 / 14))
    if not 1 <= count <= mlps + layers * heads:
        raise CircuitError(
            f"A random circuit must have 3 to {layers + layers * heads + 2} nodes in {layers} layers of {heads} heads. "
            f"Got {count + 2}."
        )
    sites = [f"m{index * layers // max(1, mlps)}" for index in range(mlps)]
    all_heads = [f"a{layer}.h{head}" for layer in range(layers) for head in range(heads)]
    wanted = count - mlps
    return sites + [all_heads[index * len(all_heads) // wanted] for index in range(wanted)]


def _backbone(inner: Sequence[str], seed: int) -> list[Edge]:
    """One edge into every node, and one to `logits` from each node that nothing reads: close to the fewest edges."""
    order = sorted(inner, key=lambda name: (_depth(name), Node.parse(name).head or 0))
    kept = []
    for index, node in enumerate(order):
        before = ["input", *(u for u in order[:index] if _depth(u) < _depth(node))]
        source = min(before, key=lambda name: _digest(f"{seed} into {node} {name}"))
        kept.append(Edge(source, node))
    read = {edge.source for edge in kept}
    return kept + [Edge(node, "logits") for node in order if node not in read]


def _ends(inner: Iterable[str]) -> list[Edge]:
    """Edges from `input` to every inner node and from there to `logits`."""
    return [edge for node in inner for edge in (Edge("input", node), Edge(node, "logits"))]


def _pairs(inner: Sequence[str]) -> list[Edge]:
    """Every edge between inner nodes of different layers; parallel models have no others."""
    return [Edge(u, v) for u in inner for v in inner if _depth(u)[0] < _depth(v)[0]]


def _chosen(edges: Sequence[Edge], count: int, seed: object) -> list[Edge]:
    """`count` of the edges, chosen by hash."""
    return sorted(edges, key=lambda edge: _digest(f"{seed} {edge}"))[:count]


def _with_port(edge: Edge) -> Edge:
    """The edge through a port of its target, chosen by hash, if the target is a head."""
    choices = _through(edge, "qvkv")
    return choices[_digest(f"port {edge}")[0] % len(choices)]


def _through(edge: Edge, ports: str) -> list[Edge]:
    """The edge through each of the ports of its target, if the target is a head; else the edge itself."""
    head = Node.parse(edge.target).kind is Kind.HEAD
    return [Edge(edge.source, edge.target, port) for port in ports] if head else [edge]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _depth(name: str) -> tuple[int, float]:
    """Layer and rank of an inner node: within a layer, heads come before the MLP."""
    node = Node.parse(name)
    assert node.layer is not None
    assert node.rank is not None
    return node.layer, node.rank


def _head(depth: int, index: int, layers: int, heads: int) -> str:
    """The head with this index at this depth; its number is shifted from layer to layer."""
    return f"a{depth * layers // _DEPTH}.h{(5 * depth + index) % heads}"


def _mlp(depth: int, layers: int) -> str:
    return f"m{depth * layers // _DEPTH}"


def _check_depth(name: str, layers: int, heads: int, least: int) -> None:
    if layers < _DEPTH or heads < least:
        raise CircuitError(
            f"The reference circuit {name!r} needs a model of at least {_DEPTH} layers and {least} heads. Got "
            f"{layers} layers of {heads} heads: give a circuit file."
        )
