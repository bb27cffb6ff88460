"""Several processes training as one (torchrun): who am I, who writes, and what do all agree on."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def join_group(device: torch.device) -> torch.device:
    """Join the processes torchrun started, if it did; each takes its own GPU."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def n_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def on_first(action: Callable[..., None], *arguments: Any):
    """Act in one process; the others wait."""
    if rank() == 0:
        action(*arguments)
    if n_processes() > 1:
        dist.barrier()


def agreed(is_true: bool) -> bool:
    """The first process's answer, in all of them: clocks differ, decisions must not."""
    if n_processes() == 1:
        return is_true
    answer = [is_true]
    dist.broadcast_object_list(answer)
    return bool(answer[0])


def add_over_processes(*tensors: Tensor):
    """Each tensor becomes its sum over all processes."""
    if n_processes() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)
