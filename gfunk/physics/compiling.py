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


def can_compile(device: torch.device) -> bool:
    """Whether torch can compile for the device here: it needs a C++ compiler, or Triton. GFUNK_COMPILE=0 says no."""
    if os.environ.get("GFUNK_COMPILE") == "0":
        return False
    if device.type == "cuda":
        return HAS_TRITON
    return shutil.which(os.environ.get("CXX", "g++")) is not None or shutil.which("clang++") is not None
