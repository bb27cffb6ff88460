"""The training loop: schedules, horizon growth, early stopping, exact resume, many processes. It knows no recipe."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gfunk.batch import TrajectorySet
from gfunk.errors import InputError
from gfunk.norms import relative_h1, relative_l2
from gfunk.rollout import FlowMap, Integrator, rollout
from gfunk.store import CorruptFile, read_arrays, write_arrays, write_bytes

LOSSES = {"l2": relative_l2, "h1": relative_h1}


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train. Nothing here depends on the clock, so a run stopped and resumed is the run never stopped."""

    epochs: int
    batch_size: int
    learning_rate: float
    schedule: Literal["halving", "cosine"] = "cosine"
    halve_every: int = 100  # epochs
    warmup_iterations: int = 20  # cosine only
    loss: Literal["l2", "h1"] = "l2"
    # Saves predicted at first, growing evenly to all of them over this part of the training; 0: all from the beginning.
    first_horizon: int = 0
    growth: float = 0.4
    # Pairs (saves a step covers, or 1; steps a save is cut into, or 1), drawn anew for each batch. Flow maps only.
    strides: tuple[tuple[int, int], ...] = ((1, 1),)
    patience: int | None = None  # epochs without a better validation loss before stopping
    clip: float = 1.0  # largest gradient norm
    half_precision: bool = False  # bfloat16 inside the operator
    saves_memory: bool = False
    validate_every: int = 1  # epochs
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch came to."""

    number: int
    loss: float
    validation: float | None
    learning_rate: float
    horizon: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended."""

    reason: Literal["done", "no better", "time is up"]
    epochs: int
    best_epoch: int
    best_validation: float
    seconds: float


@dataclass
class _Progress:
    """Where a run stands; all of it is in the checkpoint."""

    epoch: int = 0
    iteration: int = 0
    best_epoch: int = 0
    best_validation: float = float("inf")
    seconds: float = 0.0


def train(
    operator: nn.Module,
    data: TrajectorySet,
    validation: TrajectorySet,
    integrator: Integrator,
    config: TrainingConfig,
    folder: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    checkpoint_seconds: float = 30.0,
    step: Callable[..., Tensor] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    on_iteration: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train the operator in place; it ends holding the best weights, which `best.safetensors` has too.

    step: the operator as it should be called, for instance compiled; it shares the operator's parameters.
    """
    _check(config, data, integrator)
    _check_finite(data, validation)
    if not resume:
        check_free(folder)
    call = operator if step is None else step
    optimizer = torch.optim.Adam(operator.parameters(), lr=config.learning_rate)
    progress = _restored(folder, operator, optimizer) if resume else _Progress()
    _trim_log(folder, progress.epoch)
    # The first epoch is always saved: the folder is taken from then on.
    started, saved = time.monotonic(), float("-inf")
    before = progress.seconds
    while not (reason := _reason_to_end(config, progress)):
        epoch = _one_epoch(operator, call, data, integrator, config, optimizer, progress, on_iteration)
        if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
            score = mean_loss(call, validation, integrator, config)
            epoch = Epoch(**{**vars(epoch), "validation": score})
            if score < progress.best_validation:
                progress.best_validation, progress.best_epoch = score, progress.epoch
                _on_first(save_weights, folder / "best.safetensors", operator, {"epoch": str(progress.epoch)})
        progress.seconds = before + time.monotonic() - started
        _on_first(_append_log, folder, epoch)
        on_epoch(epoch)
        is_late = minutes is not None and _agreed(time.monotonic() - started > 60 * minutes)
        ends = is_late or _reason_to_end(config, progress) is not None
        if ends or _agreed(time.monotonic() - saved > checkpoint_seconds):
            _on_first(_save_progress, folder, operator, optimizer, progress)
            saved = time.monotonic()
        if is_late:
            reason = _reason_to_end(config, progress) or "time is up"
            break
    if (folder / "best.safetensors").exists():
        load_weights(folder / "best.safetensors", operator)
    return Outcome(
        reason=reason,
        epochs=progress.epoch,
        best_epoch=progress.best_epoch,
        best_validation=progress.best_validation,
        seconds=progress.seconds,
    )


def check_free(folder: Path):
    """Refuse a folder that holds a run."""
    if (folder / "last.safetensors").exists():
        raise InputError(f"{folder}: a run is there already; resume it (--resume) or choose another folder")


def learning_rate(config: TrainingConfig, epoch: int, iteration: int, iterations_an_epoch: int) -> float:
    """The paper's halving by epochs, or a warm-up and a cosine down to zero over the whole training."""
    if config.schedule == "halving":
        return config.learning_rate * 0.5 ** (epoch // config.halve_every)
    rise = min(1.0, (iteration + 1) / max(config.warmup_iterations, 1))
    return config.learning_rate * rise * (1 + cos(pi * iteration / (config.epochs * iterations_an_epoch))) / 2


def horizon(config: TrainingConfig, epoch: int, n_saves: int) -> int:
    """How many saves to predict in this epoch."""
    if config.first_horizon == 0:
        return n_saves
    part = min(1.0, epoch / max(1.0, config.growth * config.epochs))
    return min(n_saves, round(config.first_horizon + part * (n_saves - config.first_horizon)))


@torch.no_grad()
def mean_loss(operator: Callable[..., Tensor], data: TrajectorySet, integrator: Integrator, config: TrainingConfig) -> float:
    """The loss over whole trajectories, shared between the processes."""
    durations = torch.diff(data.times).tolist()
    mine = torch.arange(_rank(), data.n_trajectories, _n_processes(), device=data.values.device)
    total = torch.zeros((), device=data.values.device)
    for chosen in mine.split(config.batch_size):
        batch, true = data.take(chosen)
        with _precision(config, true):
            predicted = rollout(operator, true[:, 0], batch, durations, integrator)
        total += LOSSES[config.loss](predicted[:, 1:], true[:, 1:], batch).sum()
    if _n_processes() > 1:
        dist.all_reduce(total)
    return float(total) / data.n_trajectories


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


def _one_epoch(
    operator: nn.Module,
    step: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator,
    config: TrainingConfig,
    optimizer: torch.optim.Optimizer,
    progress: _Progress,
    on_iteration: Callable[[], None],
) -> Epoch:
    started = time.monotonic()
    # Drawn from the epoch's number alone, so a resumed run draws the same.
    rng = np.random.default_rng((config.seed, progress.epoch))
    chosen_lists = np.array_split(rng.permutation(data.n_trajectories), -(-data.n_trajectories // config.batch_size))
    n_saves = horizon(config, progress.epoch, len(data.times) - 1)
    losses, slopes, rate = [], [], 0.0
    for chosen in chosen_lists:
        rate = learning_rate(config, progress.epoch, progress.iteration, len(chosen_lists))
        for group in optimizer.param_groups:
            group["lr"] = rate
        stride, cuts = config.strides[rng.integers(len(config.strides))]
        n_steps = max(1, n_saves // stride)
        start = int(rng.integers(len(data.times) - n_steps * stride))
        optimizer.zero_grad(set_to_none=True)
        losses.append(_gradients(operator, step, data, integrator, config, chosen, start, stride, cuts, n_steps))
        slopes.append(nn.utils.clip_grad_norm_(operator.parameters(), config.clip))
        optimizer.step()
        progress.iteration += 1
        on_iteration()
    values = torch.stack(losses).tolist()
    for chosen, value, slope in zip(chosen_lists, values, torch.stack(slopes).tolist(), strict=True):
        if not np.isfinite([value, slope]).all():
            seeds = sorted({data.seeds[trajectory] for trajectory in chosen})
            raise InputError(
                f"the loss became {value}, its slope {slope}, in epoch {progress.epoch + 1}, on the batch of seeds {seeds}: "
                "lower the learning rate or look at these samples; the last checkpoint is from before"
            )
    progress.epoch += 1
    return Epoch(
        number=progress.epoch,
        loss=float(np.mean(values)),
        validation=None,
        learning_rate=rate,
        horizon=n_saves,
        seconds=time.monotonic() - started,
    )


def _gradients(
    operator: nn.Module,
    step: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator,
    config: TrainingConfig,
    chosen: np.ndarray,
    start: int,
    stride: int,
    cuts: int,
    n_steps: int,
) -> Tensor:
    """Leave the gradient of the mean loss over the chosen trajectories in the parameters; returns that loss.

    Each process takes its share of the batch; the sum of their gradients is that of one process alone.
    """
    total = torch.zeros((), device=data.values.device)
    mine = chosen[_rank() :: _n_processes()]
    if len(mine):
        batch, values = data.take(torch.from_numpy(mine).to(data.values.device))
        true = values[:, start : start + n_steps * stride + 1 : stride]
        durations = torch.diff(data.times[start : start + n_steps * stride + 1 : stride]).tolist()
        if (stride, cuts) != (1, 1):
            integrator = FlowMap(longest_step=durations[0] / cuts)
        with _precision(config, true):
            predicted = rollout(step, true[:, 0], batch, durations, integrator, saves_memory=config.saves_memory)
        loss = LOSSES[config.loss](predicted[:, 1:], true[:, 1:], batch).sum() / len(chosen)
        loss.backward()
        total = loss.detach()
    if _n_processes() > 1:
        for parameter in operator.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        dist.all_reduce(total)
    return total


def _check(config: TrainingConfig, data: TrajectorySet, integrator: Integrator):
    if config.loss not in LOSSES or config.schedule not in ("halving", "cosine"):
        raise InputError(f"unknown loss {config.loss!r} or schedule {config.schedule!r}")
    if config.epochs < 1 or config.batch_size < 1:
        raise InputError("training needs at least one epoch and one trajectory a batch")
    for name in ("learning_rate", "halve_every", "patience", "clip", "validate_every"):
        if getattr(config, name) is not None and not getattr(config, name) > 0:
            raise InputError(f"training.{name} must be positive, not {getattr(config, name)}")
    if config.strides != ((1, 1),) and not isinstance(integrator, FlowMap):
        raise InputError("strides other than (1, 1) need the flow map as integrator")
    if not all(1 <= stride < len(data.times) and cuts >= 1 for stride, cuts in config.strides):
        raise InputError(f"strides {config.strides} don't fit {len(data.times)} saved times")


def _check_finite(*sets: TrajectorySet):
    for data in sets:
        is_finite = data.values.isfinite().flatten(1).all(dim=1).tolist()
        if seeds := sorted({seed for seed, fine in zip(data.seeds, is_finite, strict=True) if not fine}):
            raise InputError(f"the samples of seeds {seeds} hold values that are not finite: simulate them again")


def _reason_to_end(config: TrainingConfig, progress: _Progress) -> Literal["done", "no better"] | None:
    if progress.epoch >= config.epochs:
        return "done"
    is_stuck = config.patience is not None and progress.epoch - progress.best_epoch >= config.patience
    return "no better" if is_stuck else None


def _precision(config: TrainingConfig, like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, enabled=config.half_precision)


def _save_progress(folder: Path, operator: nn.Module, optimizer: torch.optim.Optimizer, progress: _Progress):
    arrays = {f"model.{name}": _array(tensor) for name, tensor in operator.state_dict().items()}
    for name, parameter in operator.named_parameters():
        for part, value in optimizer.state[parameter].items():
            arrays[f"adam.{part}.{name}"] = _array(value)
    write_arrays(folder / "last.safetensors", arrays, {"progress": json.dumps(vars(progress))})


def _restored(folder: Path, operator: nn.Module, optimizer: torch.optim.Optimizer) -> _Progress:
    try:
        arrays, note = read_arrays(folder / "last.safetensors")
    except FileNotFoundError:
        return _Progress()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        operator.load_state_dict({name: tensors[f"model.{name}"] for name in operator.state_dict()})
        for name, parameter in operator.named_parameters():
            optimizer.state[parameter] = {
                part: tensors[f"adam.{part}.{name}"].to("cpu" if part == "step" else parameter.device)
                for part in ("step", "exp_avg", "exp_avg_sq")
            }
        return _Progress(**json.loads(note["progress"]))
    except (KeyError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptFile(f"{folder / 'last.safetensors'}: a checkpoint of another network ({reason})") from error


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _append_log(folder: Path, epoch: Epoch):
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(vars(epoch)) + "\n")


def _trim_log(folder: Path, epochs: int):
    """Forget logged epochs after the checkpoint: they will be trained again."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    if _rank() == 0 and log.exists():
        write_bytes(log, b"".join(line + b"\n" for line in log.read_bytes().splitlines()[:epochs]))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _n_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _on_first(action: Callable[..., None], *arguments: Any):
    if _rank() == 0:
        action(*arguments)
    if _n_processes() > 1:
        dist.barrier()


def _agreed(is_true: bool) -> bool:
    """The first process's answer, in all of them: clocks differ, decisions must not."""
    if _n_processes() == 1:
        return is_true
    answer = [is_true]
    dist.broadcast_object_list(answer)
    return bool(answer[0])
