"""Devices, precisions and names that do not exist: one line, at once, before anything is loaded or downloaded."""

import socket

import pytest
import torch

from eics.errors import EICSError, ModelError, OptionError
from eics.models import hub
from eics.models.device import choose_device, choose_dtype
from eics.models.out_of_memory import is_out_of_memory, memory_explained
from eics.transformer.adapt import load_model


def test_auto_prefers_cuda_then_mps_then_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device() == choose_device("auto") == choose_device(None) == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(OptionError, match=r"'cuda:2' must be present\. torch finds 2 here"):
        choose_device("cuda:2")


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda", "torch finds no cuda device here: use 'auto' or 'cpu'"),
        ("cuda:3", "torch finds no cuda device here"),
        ("mps", "torch finds no mps device here"),
        ("meta", "a device that computes"),
        ("gpu", "'auto', 'cpu', 'cuda'"),
        ("", "'auto', 'cpu', 'cuda'"),
        (3.5, "'auto', 'cpu', 'cuda'"),
    ],
)
def test_a_device_that_is_not_there(monkeypatch, device, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match=says):
        load_model("induction", device=device)


def test_precisions():
    cpu = torch.device("cpu")
    assert choose_dtype(None, cpu) is torch.float32
    assert choose_dtype("float16", cpu) is torch.float16
    for wrong in ("int8", "half", "float", "nonsense", torch.int32):
        with pytest.raises(OptionError, match="float32, float64, bfloat16, float16"):
            choose_dtype(wrong, cpu)
    with pytest.raises(OptionError, match="no float64"):
        choose_dtype("float64", torch.device("mps"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smolm2", r"Did you mean 'smollm2'\?"),
        ("People-1", r"Did you mean 'people-1'"),
        ("gpt2", r"Did you mean 'openai-community/gpt2'\?"),
        ("nothing-like-it", r"a hub id has the form owner/name\. Names: smollm2, "),
        ("/no/such/folder", r"there is no such folder\.$"),
        ("a/b/c", r"there is no such folder\.$"),
        ("x" * 5000, r"folder or hub id"),
        ("a\0b", r"folder or hub id"),
        ("", r"folder or hub id"),
    ],
)
def test_an_unknown_name_is_answered_without_a_hub(monkeypatch, name, says):
    def refuse(*_, **__):
        pytest.fail("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ModelError, match=says) as error:
        load_model(name)
    assert len(str(error.value)) < 500


def test_without_a_network_a_hub_id_is_one_line_soon(monkeypatch, capfd):
    with socket.socket() as unused:  # a port on which nobody listens
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(hub, "getproxies", dict)
    assert hub.hub_is_unreachable()
    with pytest.raises(ModelError, match=r"'nobody/nothing' must be .* the hub could not be reached") as error:
        load_model("nobody/nothing")
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_hub_that_answers_or_hides_behind_a_proxy_is_asked(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(hub, "getproxies", dict)
        assert not hub.hub_is_unreachable()
    assert hub.hub_is_unreachable()
    monkeypatch.setattr(hub, "getproxies", lambda: {"http": "http://proxy:3128"})
    assert not hub.hub_is_unreachable()


def test_memory_that_runs_out_is_recognised():
    with pytest.raises(RuntimeError) as error:  # a real refusal of the CPU's allocator
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_study_names_the_batch_size_to_try():
    @memory_explained
    def study(*, batch_size: int = 8) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    for call, size in ((study, 4), (lambda: study(batch_size=3), 1)):
        with pytest.raises(EICSError, match=f"use a batch size of {size}"):
            call()
    with pytest.raises(EICSError, match="a shorter prompt"):
        study(batch_size=1)
