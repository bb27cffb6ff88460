"""Kernels for a GPU, tried without one; `tests/test_gpu.py` has them on it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here: `pip install triton` to try the kernels on a CPU")
@pytest.mark.parametrize("program", ["interpreted_fronts.py", "interpreted_steps.py"])
def test_kernels_find_what_a_cpu_does(program: str):
    # In its own process: what is interpreted in one never runs on a GPU.
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).parent / program)], env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
