"""Several processes training as one (torchrun): who am I, who writes, and what do all agree on."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor


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
