"""Reference sets on tiny models, for tests of learned sheaves."""

import functools

import numpy as np
import torch

import eics
from eics.transformer.adapt import adapt
from support.tiny_models import some_circuit, tiny_module


def random_prompts(count: int, seed: int = 0, least: int = 4, most: int = 8) -> list[list[int]]:
    """Token lists of mixed lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 61, size=rng.integers(least, most + 1)).tolist() for _ in range(count)]


@functools.cache
def small(family: str = "llama", dtype: torch.dtype = torch.float32):
    """An adapted model and a circuit of it with ports, several sources and two sinks; tests must not change them."""
    model = adapt(tiny_module(family, dtype))
    return model, some_circuit(model)


@functools.cache
def small_calibration(family: str = "llama", terms: str = "sheaf"):
    """What is usual for `small`, learned from 160 random prompts."""
    model, circuit = small(family)
    return eics.calibrate(model, circuit, random_prompts(160), terms=terms)


@functools.cache
def kept_calibration():
    """The same with its moments, from which more can be learned."""
    model, circuit = small()
    return eics.calibrate(model, circuit, random_prompts(120), terms="sheaf", keep_moments=True)


@functools.cache
def pooled_calibration(family: str = "llama", count: int = 200):
    """What is usual for `small` at every position but the first."""
    model, circuit = small(family)
    return eics.calibrate(model, circuit, random_prompts(count), terms="sheaf", at="all")
