"""One thread and the same random draws every time: a test that passed once passes again. The toy dataset is made once."""

import os
from pathlib import Path

# Read when SciPy loads its BLAS, so before anything imports it. Two threads on a busy machine wait for each other:
# 200 modes of 4,900 nodes took 19 s instead of 0.9 s.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=20)
settings.load_profile("deterministic")


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with simulated splits train, val and test; tests that change it take a copy."""
    # Imported late: what conftest imports at once escapes the checks of shapes and types.
    from toy_heat import simulate_toy

    folder = tmp_path_factory.mktemp("toy") / "data"
    simulate_toy(folder)
    return folder
