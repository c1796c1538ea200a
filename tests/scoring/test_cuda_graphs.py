"""A second run after a forward pass exchanges nothing with the device, so that it can be recorded as a CUDA graph.

This needs no GPU: any synchronisation or copy that bypasses the tape is noticed here. `tests/gpu` checks that replayed
graphs give the same results as computing without them.
"""

import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode

import eics
from eics.linalg.host_device import (
    DivergedError,
    Replay,
    Tape,
    exchanging_over,
    filling_cache,
    keep_alive,
    to_device,
    to_host,
)
from eics.scoring.batch import compute
from eics.scoring.cuda_graphs import graph_cache
from eics.scoring.options import PAPER, WELL_POSED
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.learned import small, small_calibration
from support.tiny_models import FAMILIES, some_circuit, tiny_model

SAME = [[5, 17, 3, 42, 8, 1], [9, 2, 33, 7, 12, 40]]
MIXED = [[5, 17, 3, 42, 8, 1], [9, 2, 33]]
PRESETS = {"paper": PAPER, "well-posed": WELL_POSED}


class NoExchange(TorchFunctionMode):
    """Refuses every synchronisation and every copy between host and device outside `eics.linalg.host_device`."""

    synchronising = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "equal", "unique")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        listed = name in ("__getitem__", "__setitem__") and _has_list(args[1])
        if (name in (*self.synchronising, "tensor", "as_tensor", "cpu") or listed) and not _allowed():
            raise AssertionError(f"{name} synchronises with the device or copies to it")
        return function(*args, **(kwargs or {}))


def _has_list(index) -> bool:
    return any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,)))


def _allowed() -> bool:
    """Copies on the tape, and random numbers drawn on the CPU."""
    frame, names = sys._getframe(2), []
    while frame is not None and len(names) < 8:
        names.append((frame.f_globals.get("__name__"), frame.f_code.co_name))
        frame = frame.f_back
    return ("eics.linalg.host_device", "to_device") in names or ("eics.linalg.probes", "fork") in names


def _numbers(state, circuit, options):
    with torch.no_grad():
        return compute(TransformerRun(state, circuit).linearize(options.linearization), options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("linearization", ["frozen", "jacobian"])
@pytest.mark.parametrize("prompts", [SAME, MIXED], ids=["same", "padded"])
def test_a_second_run_exchanges_nothing_with_the_device(family, preset, linearization, prompts):
    model = tiny_model(family)
    circuit = some_circuit(model)
    options = PRESETS[preset].with_(mode="fast", linearization=linearization)
    state = run(model, prompts, circuit)
    first = Tape()
    with exchanging_over(first):
        want = _numbers(state, circuit, options).packed.fetch()
    again = Replay(first)
    with exchanging_over(again), NoExchange():
        replayed = _numbers(state, circuit, options)
    assert replayed.packed.fetch() == want
    again.finish()
    assert [question.tolist() for question in again.questions] == first.answers
    assert first.constants
    plain = _numbers(state, circuit, options).packed.fetch()
    assert plain["eics"] == want["eics"]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_judging_nodes_a_second_time_exchanges_nothing_with_the_device(family):
    model, circuit = small(family)
    judge = small_calibration(family).judge
    state = run(model, MIXED, circuit)

    def judged():
        with torch.no_grad():
            return judge.judge(TransformerRun(state, circuit), 0.05)

    first = Tape()
    with exchanging_over(first):
        want = judged().judgement.z
    again = Replay(first)
    with exchanging_over(again), NoExchange():
        replayed = judged()
    torch.testing.assert_close(replayed.judgement.z, want, equal_nan=True)
    assert len(replayed.tensors) == 6


def test_an_exchange_off_the_tape_is_noticed():
    with NoExchange(), pytest.raises(AssertionError, match="__bool__"):
        assert torch.ones(1)
    with NoExchange(), pytest.raises(AssertionError, match="__getitem__"):
        torch.ones(3)[[0, 2]]


def test_a_second_run_that_diverges_is_refused():
    cpu = torch.device("cpu")
    first = Tape()
    with exchanging_over(first):
        assert to_host(torch.tensor([True, False])) == [True, False]
        to_device([1, 2], cpu)
    with exchanging_over(Replay(first)), pytest.raises(DivergedError, match="sent other numbers"):
        to_device([1, 3], cpu)
    with exchanging_over(Replay(first)):
        assert to_host(torch.tensor([False, False])) == [True, False]  # the answer is the first run's
        with pytest.raises(DivergedError, match="asked more"):
            to_host(torch.tensor([True, False]))
    with pytest.raises(DivergedError, match="exchanged less"):
        Replay(first).finish()
    with (
        exchanging_over(Replay(first)),
        pytest.raises(DivergedError, match="missed something in a cache"),
        filling_cache(),
    ):
        pass


def test_filling_a_cache_is_not_on_the_tape():
    first = Tape()
    with exchanging_over(first), filling_cache():
        assert to_host(torch.ones(2)) == [1.0, 1.0]
    assert first.answers == []


def test_weights_that_changed_are_noticed():
    weight, again = torch.ones(2), Replay(Tape())
    with exchanging_over(again):
        keep_alive(weight * 2, [weight])
    assert again.weights_unchanged
    weight.add_(1.0)
    assert not again.weights_unchanged


def test_on_the_cpu_nothing_is_recorded():
    model = tiny_model("gpt2")
    scores = eics.score(model, some_circuit(model), SAME, mode="fast")
    assert [score.status for score in scores] == ["clipped", "clipped"]
    assert not graph_cache(model).entries
