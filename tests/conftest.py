"""What all tests share: one thread for each of them, and how Hypothesis searches."""

import os

# Tests run side by side, one on each core; threads inside them, or inside programs that they start, would only get in
# each other's way: on two busy cores one test of validation took 36 s instead of 3. The libraries below read these when
# they are loaded, and programs that a test starts inherit them.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "eics", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("eics"), derandomize=False, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "eics"))


@pytest.fixture(autouse=True)
def _one_thread():
    """Undoes what a test before may have set."""
    torch.set_num_threads(1)
