"""The training loop: schedules, horizon growth, early stopping, exact resume, many processes. It knows no recipe."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import cos, pi
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim import Adam, Muon, Optimizer

from gfunk.batch import Batch, TrajectorySet
from gfunk.checkpoints import Progress, append_log, check_free, load_weights, restored, save_progress, save_weights, trim_log
from gfunk.errors import InputError
from gfunk.norms import relative_h1, relative_l2
from gfunk.processes import add_over_processes, agreed, n_processes, on_first, rank
from gfunk.replay import Replay
from gfunk.rollout import RK4, Adaptive, Direct, Euler, FlowMap, Integrator, rollout
from gfunk.soap import Soap

LOSSES = {"l2": relative_l2, "h1": relative_h1}


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train. Nothing here depends on the clock, so a run stopped and resumed is the run never stopped."""

    epochs: int
    batch_size: int
    learning_rate: float
    # Muon moves the matrices between hidden layers by their gradient made orthogonal; all else is Adam's.
    # SOAP gives these to Adam in the eigenbasis of their gradients.
    optimizer: Literal["adam", "muon", "soap"] = "adam"
    schedule: Literal["halving", "cosine"] = "cosine"
    halve_every: int = 100  # epochs
    warmup_iterations: int = 20  # cosine only
    loss: Literal["l2", "h1"] = "l2"
    # Saves predicted at first, growing to all of them over this part of the training; 0: all from the beginning.
    first_horizon: int = 0
    growth: float = 0.4
    growth_power: float = 1.0  # 1: evenly; above: few saves, whose iterations are cheap, for longer
    # Part of the training, at its start, that takes one step a save, however many the integrator takes: cheaper still.
    coarse_part: float = 0.0
    # Pairs (saves from one used to the next, which a flow map covers in a step; or steps it cuts a save into, or 1), drawn
    # anew for each batch.
    strides: tuple[tuple[int, int], ...] = ((1, 1),)
    # Output times drawn anew for each batch. Direct operators only: they need no time before another.
    n_times: int = 8
    # Saves that they start from, one drawn for each batch: a wave under way is one more wave to learn from.
    starts: tuple[int, ...] = (0,)
    # A batch's domains come from one of so many groups of like size, and are padded to the largest of that group alone.
    n_sizes: int = 1
    patience: int | None = None  # epochs without a better validation loss before stopping
    clip: float = 1.0  # largest gradient norm
    half_precision: bool = False  # bfloat16 inside the operator
    saves_memory: bool = False
    validate_every: int = 1  # epochs
    validation_stride: int = 1  # saves: it looks at every so many
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


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What one iteration learns from: some saves of the chosen trajectories, the first of them given."""

    chosen: np.ndarray
    saves: tuple[int, ...]
    n_nodes: int  # of the largest domain there can be among them
    cuts: int = 1
    is_coarse: bool = False


def step_of(operator: nn.Module, config: TrainingConfig, compiles: bool) -> Callable[..., Tensor]:
    """What `train` calls: the operator itself, or compiled, once for all sizes or once for the only one there is."""
    if not compiles:
        return operator
    # Of networks before, compiled code is of no use, and there is a limit to how much of it is kept.
    torch.compiler.reset()
    return torch.compile(operator, dynamic=config.n_sizes > 1)


def train(
    operator: nn.Module,
    data: TrajectorySet,
    validation: TrajectorySet,
    integrator: Integrator | Direct,
    config: TrainingConfig,
    folder: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    checkpoint_seconds: float = 30.0,
    step: Callable[..., Tensor] | None = None,
    replays: bool = True,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    on_iteration: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train the operator in place; it ends holding the best weights, which `best.safetensors` has too.

    step: the operator as it should be called, for instance compiled; it shares the operator's parameters.
    replays: on a GPU, iterations are recorded and replayed, which is faster and holds more memory.
    """
    check_training(config, data, integrator)
    _check_finite(data, validation)
    if isinstance(integrator, Direct):
        data, validation = with_firsts(operator, data, config, config.starts), with_firsts(operator, validation, config)
    if not resume:
        check_free(folder)
    call = operator if step is None else step
    replay = Replay(replays and can_replay(data, integrator))
    optimizers = make_optimizers(operator, config)
    progress = restored(folder, operator, optimizers) if resume else Progress()
    on_first(trim_log, folder, progress.epoch)
    # The first epoch is always saved: the folder is taken from then on.
    started, saved = time.monotonic(), float("-inf")
    before = progress.seconds
    while not (reason := _reason_to_end(config, progress)):
        epoch = _one_epoch(operator, call, data, integrator, config, optimizers, progress, replay, on_iteration)
        if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
            score = mean_loss(call, validation, integrator, config, replay)
            epoch = replace(epoch, validation=score)
            if score < progress.best_validation:
                progress.best_validation, progress.best_epoch = score, progress.epoch
                on_first(save_weights, folder / "best.safetensors", operator, {"epoch": str(progress.epoch)})
        progress.seconds = before + time.monotonic() - started
        on_first(append_log, folder, vars(epoch))
        on_epoch(epoch)
        is_late = minutes is not None and agreed(time.monotonic() - started > 60 * minutes)
        ends = is_late or _reason_to_end(config, progress) is not None
        if ends or agreed(time.monotonic() - saved > checkpoint_seconds):
            on_first(save_progress, folder, operator, optimizers, progress)
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


def make_optimizers(operator: nn.Module, config: TrainingConfig) -> list[Optimizer]:
    """Each parameter belongs to one of them."""

    def is_matrix(parameter: nn.Parameter) -> bool:
        # What leads into the network or out of it has but a few rows or columns: nothing there to make orthogonal.
        return parameter.ndim == 2 and min(parameter.shape) >= 8 and not parameter.is_complex()

    rate, parameters = config.learning_rate, list(operator.parameters())
    matrices = [] if config.optimizer == "adam" else [p for p in parameters if is_matrix(p)]
    optimizers: list[Optimizer] = [Adam([p for p in parameters if not any(p is each for each in matrices)], lr=rate)]
    if matrices and config.optimizer == "muon":
        optimizers.append(Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    elif matrices:
        optimizers.append(Soap(matrices, lr=rate))
    return optimizers


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
    part = min(1.0, epoch / max(1.0, config.growth * config.epochs)) ** config.growth_power
    return min(n_saves, round(config.first_horizon + part * (n_saves - config.first_horizon)))


def draws(
    config: TrainingConfig, epoch: int, sizes: Int[np.ndarray, " trajectory"], n_times: int, integrator: Integrator | Direct
) -> list[Draw]:
    """The iterations of an epoch, drawn from the seed and the epoch's number alone, so a resumed run draws the same.

    sizes: how many nodes each trajectory's domain has.
    """
    rng = np.random.default_rng((config.seed, epoch))
    n_saves = horizon(config, epoch, n_times - 1)
    drawn = []
    for chosen, n_nodes in _batches(config, sizes, rng):
        if isinstance(integrator, Direct):
            # One of each stretch of time, so that no batch is of late times alone, when waves have passed.
            start = config.starts[rng.integers(n) if (n := len(config.starts)) > 1 else 0]
            stretches = np.array_split(np.arange(start + 1, n_times), min(config.n_times, n_times - 1 - start))
            saves = start, *(int(rng.choice(some)) for some in stretches)
            drawn.append(Draw(chosen=chosen, saves=saves, n_nodes=n_nodes))
            continue
        stride, cuts = config.strides[rng.integers(len(config.strides))]
        n_steps = max(1, n_saves // stride)
        start = int(rng.integers(n_times - n_steps * stride))
        saves = tuple(range(start, start + n_steps * stride + 1, stride))
        is_coarse = epoch < config.coarse_part * config.epochs
        drawn.append(Draw(chosen=chosen, saves=saves, n_nodes=n_nodes, cuts=cuts, is_coarse=is_coarse))
    return drawn


def n_batches(config: TrainingConfig, n_trajectories: int) -> int:
    """Iterations of an epoch."""
    return sum(-(-len(group) // config.batch_size) for group in np.array_split(range(n_trajectories), config.n_sizes))


def _batches(
    config: TrainingConfig, sizes: Int[np.ndarray, " trajectory"], rng: np.random.Generator
) -> list[tuple[np.ndarray, int]]:
    """All trajectories in random batches, and the most nodes there are in each one's group."""
    batches = []
    for group in np.array_split(np.argsort(sizes, kind="stable"), config.n_sizes):
        shuffled = group[rng.permutation(len(group))]
        batches += [
            (each, int(sizes[group].max())) for each in np.array_split(shuffled, -(-len(group) // config.batch_size))
        ]
    return [batches[number] for number in rng.permutation(len(batches))] if config.n_sizes > 1 else batches


@torch.no_grad()
def with_firsts(
    operator: nn.Module, data: TrajectorySet, config: TrainingConfig, starts: Sequence[int] = (0,)
) -> TrajectorySet:
    """The set with what a direct operator starts from: it depends on nothing learned, so it is found once."""
    firsts = []
    for start in starts:
        for chosen in torch.arange(data.n_trajectories, device=data.values.device).split(config.batch_size):
            batch, values = data.take(chosen, chosen.new_full((1,), start))
            firsts.append(operator.first(values[:, 0], batch))  # pyright: ignore[reportCallIssue]
    return replace(data, firsts=torch.cat(firsts))


@torch.no_grad()
def mean_loss(
    operator: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator | Direct,
    config: TrainingConfig,
    replay: Replay | None = None,
) -> float:
    """The loss over whole trajectories, shared between the processes."""
    saves = torch.arange(0, len(data.times), config.validation_stride, device=data.values.device)
    durations = _durations(data.times.tolist()[:: config.validation_stride])

    # All that is not kept elsewhere is an input: a recording reads its inputs' copies, but others' memory is given away.
    def work(chosen: Tensor, saves: Tensor) -> tuple[Tensor]:
        predicted, true, batch = _predicted(operator, data, chosen, chosen, saves, None, durations, integrator, config)
        return (LOSSES[config.loss](predicted, true, batch).sum(),)

    mine = torch.arange(rank(), data.n_trajectories, n_processes(), device=data.values.device)
    total = torch.zeros((), device=data.values.device)
    for chosen in mine.split(config.batch_size):
        total += (replay or Replay(False))(("validation", len(chosen)), work, chosen, saves)[0]
    add_over_processes(total)
    return float(total) / data.n_trajectories


def _one_epoch(
    operator: nn.Module,
    step: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator | Direct,
    config: TrainingConfig,
    optimizers: list[Optimizer],
    progress: Progress,
    replay: Replay,
    on_iteration: Callable[[], None],
) -> Epoch:
    started = time.monotonic()
    times = data.times.tolist()
    drawn = draws(config, progress.epoch, data.n_nodes(), len(times), integrator)
    losses, slopes, rate = [], [], 0.0
    for draw in drawn:
        rate = learning_rate(config, progress.epoch, progress.iteration, len(drawn))
        for group in chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
            group["lr"] = rate
        losses.append(put_gradients(operator, step, data, times, integrator, config, draw, replay))
        slopes.append(nn.utils.clip_grad_norm_(operator.parameters(), config.clip))
        for optimizer in optimizers:
            optimizer.step()
        progress.iteration += 1
        on_iteration()
    values = torch.stack(losses).tolist()
    for draw, value, slope in zip(drawn, values, torch.stack(slopes).tolist(), strict=True):
        if not np.isfinite([value, slope]).all():
            seeds = sorted({data.seeds[trajectory] for trajectory in draw.chosen})
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
        horizon=horizon(config, progress.epoch - 1, len(times) - 1),
        seconds=time.monotonic() - started,
    )


def put_gradients(
    operator: nn.Module,
    step: Callable[..., Tensor],
    data: TrajectorySet,
    times: list[float],
    integrator: Integrator | Direct,
    config: TrainingConfig,
    draw: Draw,
    replay: Replay,
) -> Tensor:
    """Put the gradient of the mean loss over the chosen trajectories into the parameters; returns that loss.

    Each process takes its share of the batch; the sum of their gradients is that of one process alone.
    """
    durations = _durations([times[save] for save in draw.saves])
    if isinstance(integrator, FlowMap) and (draw.saves[1] - draw.saves[0], draw.cuts) != (1, 1):
        integrator = FlowMap(longest_step=durations[0] / draw.cuts)
    elif draw.is_coarse and isinstance(integrator, Euler | RK4):
        integrator = replace(integrator, step=max(durations))
    parameters = list(operator.parameters())

    def work(chosen: Tensor, first: Tensor, saves: Tensor) -> tuple[Tensor, ...]:
        predicted, true, batch = _predicted(step, data, chosen, first, saves, draw.n_nodes, durations, integrator, config)
        loss = LOSSES[config.loss](predicted, true, batch).sum() / len(draw.chosen)
        return loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)

    mine = torch.from_numpy(draw.chosen[rank() :: n_processes()]).to(data.values.device)
    if len(mine):
        saves = torch.tensor(draw.saves, device=mine.device)
        first = mine + data.n_trajectories * config.starts.index(draw.saves[0]) if isinstance(integrator, Direct) else mine
        # Direct operators take the times as they take values.
        form = len(durations) if isinstance(integrator, Direct) else tuple(durations)
        loss, *slopes = replay((len(mine), draw.n_nodes, form, draw.cuts, draw.is_coarse), work, mine, first, saves)
    else:
        loss, *slopes = (each.new_zeros(each.shape) for each in (data.values[0, 0, 0, 0], *parameters))
    add_over_processes(loss, *slopes)
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = slope
    return loss.clone()


def _predicted(
    step: Callable[..., Tensor],
    data: TrajectorySet,
    chosen: Tensor,
    first: Tensor,
    saves: Tensor,
    n_nodes: int | None,
    durations: list[float],
    integrator: Integrator | Direct,
    config: TrainingConfig,
) -> tuple[Tensor, Tensor, Batch]:
    """Values at the saves after the first: predicted, and true; and their domains. first: where a direct operator starts."""
    batch, true = data.take(chosen, saves, n_nodes)
    with _precision(config, true):
        if isinstance(integrator, Direct):
            assert data.firsts is not None  # by with_firsts
            times = (data.times[saves[1:]] - data.times[saves[0]]).to(true.dtype)
            predicted = step(data.firsts[first, :n_nodes], batch, times)
        else:
            predicted = rollout(step, true[:, 0], batch, durations, integrator, saves_memory=config.saves_memory)[:, 1:]
    return predicted, true[:, 1:], batch


def _durations(times: list[float]) -> list[float]:
    """Times between saves, without the last digits, which differ between equal ones."""
    return [float(f"{later - earlier:.9g}") for earlier, later in pairwise(times)]


def can_replay(data: TrajectorySet, integrator: Integrator | Direct) -> bool:
    """Whether an iteration is the same work wherever its window of times starts, decided without looking at values."""
    is_even = isinstance(integrator, Direct) or len(set(_durations(data.times.tolist()))) == 1
    return data.values.is_cuda and n_processes() == 1 and is_even and not isinstance(integrator, Adaptive)


def check_training(config: TrainingConfig, data: TrajectorySet, integrator: Integrator | Direct):
    known = {"loss": tuple(LOSSES), "schedule": ("halving", "cosine"), "optimizer": ("adam", "muon", "soap")}
    for name, choices in known.items():
        if getattr(config, name) not in choices:
            raise InputError(f"training.{name} is one of {', '.join(choices)}, not {getattr(config, name)!r}")
    if config.epochs < 1 or config.batch_size < 1:
        raise InputError("training needs at least one epoch and one trajectory a batch")
    positive = ("learning_rate", "halve_every", "growth_power", "patience", "clip", "validate_every")
    for name in (*positive, "n_times", "n_sizes", "validation_stride"):
        if getattr(config, name) is not None and not getattr(config, name) > 0:
            raise InputError(f"training.{name} must be positive, not {getattr(config, name)}")
    if any(cuts > 1 for _, cuts in config.strides) and not isinstance(integrator, FlowMap):
        raise InputError("only the flow map's steps can be cut: strides of other integrators are (n, 1)")
    if (len(data.times) - 1) % config.validation_stride:
        raise InputError(f"training.validation_stride {config.validation_stride} doesn't divide {len(data.times) - 1} saves")
    if config.n_sizes > data.n_trajectories:
        raise InputError(f"training.n_sizes is {config.n_sizes}, more than the {data.n_trajectories} trajectories there are")
    if config.starts != (0,) and not isinstance(integrator, Direct):
        raise InputError("only direct operators learn from other starts: training.starts of others is (0,)")
    if not config.starts or not all(0 <= start < len(data.times) - 1 for start in config.starts):
        raise InputError(f"training.starts {config.starts} don't fit {len(data.times)} saved times")
    if not all(1 <= stride < len(data.times) and cuts >= 1 for stride, cuts in config.strides):
        raise InputError(f"strides {config.strides} don't fit {len(data.times)} saved times")


def _check_finite(*sets: TrajectorySet):
    for data in sets:
        is_finite = data.values.isfinite().flatten(1).all(dim=1).tolist()
        if seeds := sorted({seed for seed, fine in zip(data.seeds, is_finite, strict=True) if not fine}):
            raise InputError(f"the samples of seeds {seeds} hold values that are not finite: simulate them again")


def _reason_to_end(config: TrainingConfig, progress: Progress) -> Literal["done", "no better"] | None:
    if progress.epoch >= config.epochs:
        return "done"
    is_stuck = config.patience is not None and progress.epoch - progress.best_epoch >= config.patience
    return "no better" if is_stuck else None


def _precision(config: TrainingConfig, like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, enabled=config.half_precision)
