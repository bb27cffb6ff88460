"""A training on disk: `best.safetensors` (weights), `last.safetensors` (all it takes to go on), `log.jsonl` (its epochs)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Muon, Optimizer

from gfunk.errors import InputError
from gfunk.soap import REMEMBERED, Soap
from gfunk.store import CorruptFile, read_arrays, write_arrays, write_bytes

# What an optimizer remembers of each parameter.
STATE_OF = {Adam: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",), Soap: REMEMBERED}


@dataclass
class Progress:
    """Where a training stands."""

    epoch: int = 0
    iteration: int = 0
    best_epoch: int = 0
    best_validation: float = float("inf")
    seconds: float = 0.0


def check_free(folder: Path):
    """Refuse a folder that holds a run."""
    if (folder / "last.safetensors").exists():
        raise InputError(f"{folder}: a run is there already; resume it (--resume) or choose another folder")


def save_weights(path: Path, operator: nn.Module, note: dict[str, str]):
    write_arrays(path, {name: _array(tensor) for name, tensor in operator.state_dict().items()}, note)


def load_weights(path: Path, operator: nn.Module):
    """Put saved weights into the operator; they must be just its own."""
    try:
        arrays, _ = read_arrays(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no weights there") from None
    expected = {name: tuple(tensor.shape) for name, tensor in operator.state_dict().items()}
    found = {name: array.shape for name, array in arrays.items()}
    if expected != found:
        odd = sorted(set(expected.items()) ^ set(found.items()))[0]
        raise InputError(f"{path}: weights of another network ({odd[0]} of shape {odd[1]} has no match)")
    operator.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def save_progress(folder: Path, operator: nn.Module, optimizers: Sequence[Optimizer], progress: Progress):
    arrays = {f"model.{name}": _array(tensor) for name, tensor in operator.state_dict().items()}
    for name, parameter, optimizer in _optimized(operator, optimizers):
        for part in STATE_OF[type(optimizer)]:
            arrays[f"{part}.{name}"] = _array(optimizer.state[parameter][part])
    write_arrays(folder / "last.safetensors", arrays, {"progress": json.dumps(vars(progress))})


def restored(folder: Path, operator: nn.Module, optimizers: Sequence[Optimizer]) -> Progress:
    """Where the training in the folder stands, weights and optimizers' state put back; the beginning if none is there."""
    try:
        arrays, note = read_arrays(folder / "last.safetensors")
    except FileNotFoundError:
        return Progress()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        operator.load_state_dict({name: tensors[f"model.{name}"] for name in operator.state_dict()})
        for name, parameter, optimizer in _optimized(operator, optimizers):
            optimizer.state[parameter] = {
                part: tensors[f"{part}.{name}"].to("cpu" if part == "step" else parameter.device)
                for part in STATE_OF[type(optimizer)]
            }
        return Progress(**json.loads(note["progress"]))
    except (KeyError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptFile(f"{folder / 'last.safetensors'}: a checkpoint of another network ({reason})") from error


def _optimized(operator: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, nn.Parameter, Optimizer]]:
    """Each parameter with its name and the optimizer that moves it."""
    names = {parameter: name for name, parameter in operator.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from ((names[parameter], parameter, optimizer) for parameter in group["params"])


def append_log(folder: Path, epoch: dict[str, Any]):
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(epoch) + "\n")


def trim_log(folder: Path, epochs: int):
    """Forget logged epochs after the checkpoint: they will be trained again."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    if log.exists():
        write_bytes(log, b"".join(line + b"\n" for line in log.read_bytes().splitlines()[:epochs]))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
