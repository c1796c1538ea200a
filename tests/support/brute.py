"""Brute-force twins in plain numpy: dense matrices, loops, enumerated paths. One prompt at a time."""

import numpy as np

from eics.circuits.graph import Circuit, Edge
from eics.linearized.explicit import LinearCircuit

EPS = 1e-8


class Brute:
    """One prompt of an explicit circuit as dictionaries of arrays."""

    def __init__(self, circuit: LinearCircuit, prompt: int = 0, *, frozen: bool = False, keep=None):
        kept = [edge for edge in circuit.circuit.edges if not (frozen and edge.port in ("q", "k"))]
        self.circuit = Circuit(kept)  # without edges that carry nothing, and without nodes that lose all theirs
        keep = keep or {}
        activation = {n: circuit.activations[n][prompt].numpy() for n in self.circuit.order}  # (T, d)
        self.rows = {n: keep.get(n, list(range(a.shape[0]))) for n, a in activation.items()}
        index = {n: self._flat_index(n, activation[n].shape) for n in activation}
        self.a = {n: activation[n][self.rows[n]] for n in activation}
        self.b = {n: np.zeros_like(self.a[n]) for n in activation}
        if frozen:
            for n, constant in circuit.constants.items():
                if n not in self.a:
                    continue
                self.b[n] = constant[prompt % len(constant)].numpy()[self.rows[n]]
        self.rho = {}
        for edge, matrix in circuit.maps.items():
            if edge not in kept:
                continue
            dense = (matrix[prompt % len(matrix)] if matrix.ndim == 3 else matrix).numpy()
            self.rho[edge] = dense[np.ix_(index[edge.target], index[edge.source])]

    def _flat_index(self, node, shape):
        return [t * shape[1] + i for t in self.rows[node] for i in range(shape[1])]

    def vec(self, node):
        return self.a[node].reshape(-1)

    def parents(self, node):
        return [edge for edge in self.rho if edge.target == node]

    def carried(self, node, values):
        total = np.zeros(self.a[node].size)
        for edge in self.parents(node):
            total = total + self.rho[edge] @ values[edge.source]
        return total

    def paths(self, source: str, target: str):
        """All directed paths as lists of edges, the empty one included."""
        if source == target:
            yield []
        for edge in self.rho:
            if edge.source == source:
                for rest in self.paths(edge.target, target):
                    yield [edge, *rest]

    def along(self, path, source):
        product = np.eye(self.a[source].size)
        for edge in path:
            product = self.rho[edge] @ product
        return product

    def between(self, source: str, target: str, last: Edge | None = None):
        total = np.zeros((self.a[target].size, self.a[source].size))
        for path in self.paths(source, target):
            if last is None or (path and path[-1] == last):
                total = total + self.along(path, source)
        return total

    def macro(self):
        return np.block([[self.between(s, t) for s in self.circuit.sources] for t in self.circuit.sinks])

    def node_map(self, node):
        return np.hstack([self.rho[edge] for edge in self.parents(node)])

    def units(self, node):
        """Rms by coordinate."""
        rms = np.sqrt(np.mean(self.a[node] ** 2, axis=1))
        return np.repeat(rms, self.a[node].shape[1])

    def c_sh(self, residual: str, metric: str) -> float:
        if residual == "propagated":
            return self._propagated(metric)
        terms = list(self._edge_terms() if residual == "edge" else self._joint_terms())
        if metric == "relative":
            ratios = []
            for predicted, observed, _ in terms:
                for p, o in zip(predicted, observed, strict=True):
                    below = p @ p + o @ o
                    if below > 0:
                        ratios.append((p - o) @ (p - o) / below)
            return float(np.sqrt(np.mean(ratios)))
        numerator = sum(np.sum((p - o) ** 2) for p, o, _ in terms)
        return float(np.sqrt(numerator) / (EPS + np.sqrt(sum(energy for _, _, energy in terms))))

    def _edge_terms(self):
        for edge, rho in self.rho.items():
            observed = self.a[edge.target]
            predicted = (rho @ self.vec(edge.source)).reshape(observed.shape)
            yield predicted, observed, np.sum(self.a[edge.source] ** 2) + np.sum(observed**2)

    def _joint_terms(self):
        for node in self.circuit.inner:
            observed = self.a[node] - self.b[node]
            predicted = self.carried(node, {n: self.vec(n) for n in self.a}).reshape(observed.shape)
            yield predicted, observed, np.sum(predicted**2) + np.sum(observed**2)

    def propagate(self):
        p = {n: self.vec(n) for n in self.circuit.sources}
        for node in self.circuit.inner:
            p[node] = self.b[node].reshape(-1) + self.carried(node, p)
        return p

    def _propagated(self, metric):
        p = self.propagate()
        ratios, numerator, denominator = [], 0.0, 0.0
        for node in self.circuit.sinks:
            expected = p[node].reshape(self.a[node].shape)
            for a, q, b in zip(self.a[node], expected, self.b[node], strict=True):
                above, below = (a - q) @ (a - q), (a - b) @ (a - b) + (q - b) @ (q - b)
                numerator, denominator = numerator + above, denominator + below
                if below > 0:
                    ratios.append(above / below)
        if metric == "relative":
            return float(np.sqrt(np.mean(ratios)))
        return float(np.sqrt(numerator) / (EPS + np.sqrt(denominator)))

    def coboundary(self, edges):
        """delta as a matrix, rows in the order of `edges`, columns in topological order."""
        start = np.cumsum([0] + [self.a[n].size for n in self.circuit.order])
        column = dict(zip(self.circuit.order, start, strict=False))
        blocks = []
        for edge in edges:
            block = np.zeros((self.a[edge.target].size, start[-1]))
            u, v = column[edge.source], column[edge.target]
            block[:, u : u + self.a[edge.source].size] += self.rho[edge]
            block[:, v : v + self.a[edge.target].size] -= np.eye(self.a[edge.target].size)
            blocks.append(block)
        return np.vstack(blocks)


def ei(matrix: np.ndarray, alpha: float) -> float:
    """1/2 logdet(I + alpha J^T J), by LU of the full matrix."""
    sign, logdet = np.linalg.slogdet(np.eye(matrix.shape[1]) + alpha * matrix.T @ matrix)
    assert sign > 0
    return 0.5 * float(logdet)


def brute_parts(circuit, parts, relative, prompt=0, keep=None, frozen=False):
    """{name: (matrix, min(rows, cols))}, the macro map under 'J_M'; units put in where relative."""
    b = Brute(circuit, prompt, frozen=frozen, keep=keep)
    graph = b.circuit

    def in_units(matrix, targets, sources):
        if not relative:
            return matrix
        left, right = (np.concatenate([b.units(n) for n in nodes]) for nodes in (targets, sources))
        return matrix / left[:, None] * right

    found = {"J_M": in_units(b.macro(), graph.sinks, graph.sources)}
    if parts == "nodes":
        for node in graph.inner:
            found[node] = in_units(b.node_map(node), [node], [e.source for e in b.parents(node)])
    else:
        for edge in b.rho:
            if edge.target in graph.sinks:
                sources = [s for s in graph.sources if s in graph.ancestors([edge.source])]
                matrix = np.hstack([b.between(s, edge.target, last=edge) for s in sources])
                found[str(edge)] = in_units(matrix, [edge.target], sources)
    return {name: (matrix, min(matrix.shape)) for name, matrix in found.items()}


def brute_eigenvalues(circuit, weights="none", keep=None):
    """Eigenvalues of L = delta^T W delta by numpy, and delta itself."""
    linearized = circuit.linearize("jacobian")
    brute = Brute(circuit, keep=keep)
    delta = brute.coboundary(linearized.edges)
    if weights == "operator_norm":
        by_row = [np.full(brute.a[e.target].size, 1 / np.linalg.norm(brute.rho[e], 2) ** 2) for e in linearized.edges]
        delta = np.sqrt(np.concatenate(by_row))[:, None] * delta
    return np.linalg.eigvalsh(delta.T @ delta), delta
