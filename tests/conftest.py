import os

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
    """Tests run side by side, one on each core; threads inside them would only get in each other's way."""
    torch.set_num_threads(1)
