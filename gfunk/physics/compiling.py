"""Whether work can be compiled here, by torch or by Triton for a GPU, and how torch does it."""

import os
import shutil
from importlib.util import find_spec
from typing import Any

import torch

HAS_TRITON = find_spec("triton") is not None
COMPILING: dict[str, Any] = {
    # Neighbours are in range and shapes are right, as they were made here: checking them at each step takes a fifth of the
    # time.
    "assert_indirect_indexing": False,
    "size_asserts": False,
    # A product and a sum in one instruction, rounded once: a tenth of the time.
    "cpp.enable_floating_point_contract_flag": "fast",
}
# All of a cell in one loop, where torch would make ten of it, with memory between.
ONE_LOOP = {"max_fusion_size": 1000}
# Compiling takes half a minute, and then a step a fifth of the time: it pays from so many nodes times ms on. Beside
# shortcuts it pays later: a CPU takes about half the time without them, and a GPU is quick with a few million nodes.
COMPILED_FROM = 2e6
COMPILED_BESIDE_SHORTCUTS_FROM = {"cpu": 2e7, "cuda": 3e8}


def can_compile(device: torch.device) -> bool:
    """Whether torch can compile for the device here: it needs a C++ compiler, or Triton. GFUNK_COMPILE=0 says no."""
    if os.environ.get("GFUNK_COMPILE") == "0":
        return False
    if device.type == "cuda":
        return HAS_TRITON
    return shutil.which(os.environ.get("CXX", "g++")) is not None or shutil.which("clang++") is not None


def compiling_pays(n_nodes: int, until_ms: float, device: torch.device, *, shortcuts: bool = False) -> bool:
    """Whether a solve ends sooner if it is compiled first, as far as that can be told.

    shortcuts: as `simulate_many` takes them where it is not compiled.
    """
    least = COMPILED_BESIDE_SHORTCUTS_FROM.get(device.type, COMPILED_FROM) if shortcuts else COMPILED_FROM
    return n_nodes * until_ms > least and can_compile(device)
