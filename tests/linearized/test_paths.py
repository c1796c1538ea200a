import numpy as np
import torch
from hypothesis import given

from eics import LinearCircuit
from eics.linearized.paths import branch_maps
from support.brute import Brute
from support.circuits import circuits


@given(circuits())
def test_macro_map_is_the_sum_over_enumerated_paths(circuit):
    for linearization in ("jacobian", "frozen"):
        linearized = circuit.linearize(linearization)
        dense = linearized.engine().macro_map().dense()
        for prompt in range(circuit.batch):
            truth = Brute(circuit, prompt, frozen=linearization == "frozen").macro()
            np.testing.assert_allclose(dense[prompt].numpy(), truth, atol=1e-9 * (1 + np.abs(truth).max()))


@given(circuits(positions=3))
def test_restriction_selects_rows_and_columns(circuit):
    for option, kept in (("no_sink", [1, 2]), ("last", [2])):
        linearized = circuit.linearize("jacobian").restrict(option)
        rows = {n: kept for n, a in circuit.activations.items() if a.shape[1] == 3}
        truth = Brute(circuit, 0, keep=rows).macro()
        dense = linearized.engine().macro_map().dense()[0].numpy()
        nonzero = dense[np.abs(dense).sum(axis=1) > 0][:, np.abs(dense).sum(axis=0) > 0]
        expected = truth[np.abs(truth).sum(axis=1) > 0][:, np.abs(truth).sum(axis=0) > 0]
        np.testing.assert_allclose(nonzero, expected, atol=1e-9)


@given(circuits())
def test_branches_are_the_paths_that_end_with_their_edge_and_add_up(circuit):
    linearized = circuit.linearize("jacobian")
    graph = circuit.circuit
    brute = Brute(circuit)
    total = {(s, t): 0.0 for s in graph.sources for t in graph.sinks}
    for edge, branch in branch_maps(linearized.engine()).items():
        upstream = graph.ancestors([edge.source])
        sources = [node for node in graph.sources if node in upstream]
        truth = np.hstack([brute.between(source, edge.target, last=edge) for source in sources])
        dense = branch.dense()[0].numpy()
        np.testing.assert_allclose(dense, truth, atol=1e-9 * (1 + np.abs(truth).max()))
        start = 0
        for source in sources:
            width = brute.a[source].size
            total[source, edge.target] = total[source, edge.target] + dense[:, start : start + width]
            start += width
    macro = brute.macro()
    blocks = [[np.broadcast_to(total[s, t], brute.between(s, t).shape) for s in graph.sources] for t in graph.sinks]
    np.testing.assert_allclose(np.block(blocks), macro, atol=1e-9 * (1 + np.abs(macro).max()))


def test_a_ladder_with_more_paths_than_could_be_enumerated():
    """60 layers of two nodes: 2^59 paths. Each map halves, so every layer keeps the sum of its two inputs."""
    half = torch.full((1, 1), 0.5)
    maps, ones = {}, {}
    for layer in range(60):
        for side in "ab":
            ones[f"{side}{layer}"] = [1.0]
            if layer:
                maps |= {f"{other}{layer - 1}->{side}{layer}": half for other in "ab"}
    linearized = LinearCircuit(maps, ones).linearize("jacobian")
    torch.testing.assert_close(linearized.engine().macro_map().dense()[0], torch.full((2, 2), 0.5, dtype=torch.float64))
