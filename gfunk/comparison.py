"""Operators and settings compared fairly: the same data, device and seconds of training, several seeds, no test data.

A lever is one change of a variant. Each of its runs lies in a folder of its own, an ordinary run; what is there is not
trained again, what was broken goes on.
"""

import gc
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

import torch

from gfunk.batch import TrajectorySet
from gfunk.errors import InputError
from gfunk.experiments import (
    check_modes,
    check_same,
    dataset_problem,
    evaluate_reported,
    load_split,
    run_card,
    seeded_operator,
)
from gfunk.operators.make import n_parameters
from gfunk.pace import epochs_within, measured_pace
from gfunk.recipes.recipe import Recipe, Variant
from gfunk.runs import RunCard, read_card, write_card
from gfunk.settings import to_json, with_overrides
from gfunk.simulation import View
from gfunk.store import check_terms, read_object, write_json
from gfunk.training import Epoch, TrainingConfig, check_training, step_of, train

AS_IT_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A variant with some of its settings changed. Its epochs and seed are not its own: seconds and runs decide them."""

    name: str
    settings: tuple[str, ...]
    variant: Variant

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-.")

    @property
    def training(self) -> TrainingConfig:
        assert self.variant.training is not None  # by levers_of
        return self.variant.training

    def run(self, seed: int, epochs: int) -> Variant:
        return replace(self.variant, training=replace(self.training, seed=seed, epochs=epochs))


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a run came to, on the validation split."""

    seed: int
    val_rel_l2: float
    val_rel_h1: float
    lat_error_ms: float | None  # of waves
    parameters: int
    epochs: int
    seconds: float  # of training, with compilation and recording
    milliseconds_per_trajectory: float
    commit: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A lever's runs: means over those that ended, and why others did not."""

    lever: str
    settings: str
    val_rel_l2: float | None
    spread: float | None  # standard deviation over two seeds or more
    seeds: int
    lat_error_ms: float | None
    parameters: int | None
    epochs: int | None
    seconds: float | None
    milliseconds_per_trajectory: float | None
    failed: str | None
    runs: tuple[Score, ...]


def levers_of(recipe: Recipe, variant: Variant, settings: Sequence[str], texts: Iterable[str]) -> list[Lever]:
    """The variant as it is (with the settings), then each `NAME: KEY=VALUE ...`.

    `variant=NAME` starts from another one of the recipe, at full size.
    """
    base = _lever(recipe, variant, AS_IT_IS, settings)
    levers = [base]
    for text in texts:
        name, _, rest = text.partition(":")
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise InputError(f"lever {text!r}: {error}") from error
        if not name.strip() or not words:
            raise InputError(f"lever {text!r}: write it as NAME: KEY=VALUE ...")
        levers.append(_lever(recipe, base.variant, name.strip(), words))
    for folder, count in Counter(lever.folder for lever in levers).items():
        if count > 1 or not folder:
            raise InputError(f"{count} levers would have the folder {folder!r}: give each a name of its own")
    return levers


def read_levers(path: Path) -> list[str]:
    """One lever a line; `#` begins a remark."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read ({error})") from error
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _lever(recipe: Recipe, base: Variant, name: str, words: Sequence[str]) -> Lever:
    settings = []
    for word in words:
        key, _, value = word.partition("=")
        if key in ("training.epochs", "training.seed"):
            raise InputError(
                f"lever {name!r}: {key} can't be set: the seconds decide the epochs, and all have the same seeds"
            )
        if key == "variant":
            base = recipe.variant(value)
        else:
            settings.append(word)
    try:
        variant = with_overrides(base, settings)
        check_modes(variant)
    except InputError as error:
        raise InputError(f"lever {name!r}: {str(error).removeprefix('--set ')}") from error
    if variant.training is None:
        raise InputError(
            f"lever {name!r}: {variant.name} has nothing to learn: `gfunk evaluate --split val` tells its error"
        )
    try:
        seeded_operator(variant)
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise InputError(f"lever {name!r}: no such network: {error}") from error
    return Lever(name=name, settings=tuple(words), variant=variant)


def compare(
    recipe: Recipe,
    levers: Sequence[Lever],
    data: Path,
    out: Path,
    *,
    seconds: float,
    n_seeds: int,
    device: torch.device,
    hardware: str,
    n_train: int | None = None,
    n_workers: int = 1,
    compiles: bool = False,
    on_sample: Callable[[], None] = lambda: None,
    on_start: Callable[[Lever, int, int], None] = lambda *_: None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    on_end: Callable[[Lever, int, Score | str], None] = lambda *_: None,
) -> list[Row]:
    """Train each lever with seeds 0, 1, ... in the same seconds; a row each: the first as it is, the others by their error.

    Data are read and their modes found once for all levers that see the domains by the same Laplacian. How many epochs fit
    into the seconds is measured before a lever's first run, and stands in the cards of all its runs: from then on nothing
    depends on the clock. A lever that fails says why in its row, and the others go on.
    on_start, on_end: the lever, the seed, and the epochs or what the run came to.
    """
    if not 0 < seconds < float("inf"):
        raise InputError(f"--seconds must be positive, not {seconds}")
    card = run_card(recipe, levers[0].variant, data, n_train=n_train, n_val=None)
    terms = {
        "recipe": recipe.name, "data": card.data_fingerprint, "seconds": seconds, "compile": compiles, "hardware": hardware,
    }  # fmt: skip
    check_terms(out / "comparison.json", terms)
    epochs = {lever.name: n for lever in levers if (n := _begun_epochs(lever, out))}
    write_json(out / "comparison.json", terms)
    failures: dict[str, str] = {}

    def failed(lever: Lever, seed: int, error: Exception):
        reason = " ".join((str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}").split())
        failures.setdefault(lever.name, reason[:300])
        on_end(lever, seed, reason)

    def load(view: View) -> list[TrajectorySet]:
        return [
            load_split(data / split, view, n=n, n_workers=n_workers, device=device, on_sample=on_sample).to(device)
            for split, n in (("train", n_train), ("val", None))
        ]

    def scored(lever: Lever, seed: int, sets: list[TrajectorySet]) -> Score:
        train_set, val_set = (_with_modes(each, lever.variant.view.n_modes) for each in sets)
        if lever.name not in epochs:
            check_training(lever.training, train_set, lever.variant.integrator)
            pace = measured_pace(lever.variant, train_set, val_set, limit_seconds=seconds / 40, compiles=compiles)
            epochs[lever.name] = epochs_within(seconds, lever.training, len(train_set.times) - 1, pace)
        on_start(lever, seed, epochs[lever.name])
        run = replace(card, variant=lever.run(seed, epochs[lever.name]))
        return _scored(run, train_set, val_set, data, run_folder(out, lever, seed), hardware, compiles, on_epoch)

    missing = missing_runs(levers, out, n_seeds)
    for alike in _by_view(lever for lever in levers if any(lever == each for each, _ in missing)):
        sets: list[TrajectorySet] = []
        while alike and not sets:
            # Who asks for fewer modes takes the lowest of these.
            n_modes = max(lever.variant.view.n_modes for lever in alike)
            try:
                sets = load(replace(alike[0].variant.view, n_modes=n_modes))
            except Exception as error:  # there may be too many modes for these meshes, or for the memory: not for the others
                for lever in [each for each in alike if each.variant.view.n_modes == n_modes]:
                    failed(lever, 0, error)
                    alike.remove(lever)
        for lever, seed in [(lever, seed) for lever, seed in missing if lever in alike]:
            try:
                on_end(lever, seed, scored(lever, seed, sets))
            except Exception as error:  # whatever it is, it is this lever's alone
                failed(lever, seed, error)
            # What a run leaves in memory, the next one, or its clock, would feel.
            _forget(device)
        del sets
        _forget(device)
    rows = [_row(lever, out, n_seeds, failures.get(lever.name)) for lever in levers]
    if not any(row.seeds for row in rows):
        raise InputError(f"every lever failed, the first because {rows[0].failed}")
    return [rows[0], *sorted(rows[1:], key=lambda row: _last_if_none(row.val_rel_l2))]


def run_folder(out: Path, lever: Lever, seed: int) -> Path:
    return out / lever.folder / f"seed-{seed}"


def missing_runs(levers: Sequence[Lever], out: Path, n_seeds: int) -> list[tuple[Lever, int]]:
    """What is still to be trained, all levers with one seed before any with the next."""
    runs = [(lever, seed) for seed in range(n_seeds) for lever in levers]
    return [run for run in runs if not (run_folder(out, *run) / "score.json").exists()]


def _begun_epochs(lever: Lever, out: Path) -> int | None:
    """The epochs of the lever's runs in the folder, which must be of the same settings; None if there are none."""
    epochs = None
    for path in sorted((out / lever.folder).glob("seed-*/run.json")):
        found = read_card(path.parent).variant
        assert found.training is not None  # as compare wrote it
        epochs = found.training.epochs
        if to_json(found) != to_json(lever.run(found.training.seed, epochs)):
            raise InputError(f"{path.parent}: was begun with other settings: give the lever {lever.name!r} another name")
    return epochs


def _by_view(levers: Iterable[Lever]) -> Iterator[list[Lever]]:
    """Levers whose domains are the same but for the number of modes."""
    alike: dict[View, list[Lever]] = {}
    for lever in levers:
        alike.setdefault(replace(lever.variant.view, n_modes=1), []).append(lever)
    yield from alike.values()


def _with_modes(data: TrajectorySet, n_modes: int) -> TrajectorySet:
    """As if no more modes had been found: gathering those that a lever does not use would cost it time."""
    batch = data.batch.with_modes(n_modes)
    whole = {name: getattr(batch, name).contiguous() for name in ("eigenvalues", "analysis", "synthesis")}
    return replace(data, batch=replace(batch, **whole))


def _scored(
    card: RunCard,
    train_set: TrajectorySet,
    val_set: TrajectorySet,
    data: Path,
    folder: Path,
    hardware: str,
    compiles: bool,
    on_epoch: Callable[[Epoch], None],
) -> Score:
    """Train into the folder, or go on there; what it came to is written there too."""
    variant, training = card.variant, card.variant.training
    assert training is not None
    if (folder / "run.json").exists():
        check_same(read_card(folder), card, folder)
    else:
        write_card(folder, card)
    operator = seeded_operator(variant).to(train_set.values.device)
    step = step_of(operator, training, compiles)
    outcome = train(
        operator, train_set, val_set, variant.integrator, training, folder, resume=True, step=step, on_epoch=on_epoch
    )
    evaluated = partial(evaluate_reported, operator, variant, dataset_problem(data / "val"), val_set)
    evaluated()  # the first time a GPU also loads its kernels
    result = evaluated()
    score = Score(
        seed=training.seed,
        val_rel_l2=result.rel_l2,
        val_rel_h1=result.rel_h1,
        lat_error_ms=result.summary()["lat_error_ms"],
        parameters=n_parameters(operator),
        epochs=outcome.epochs,
        seconds=outcome.seconds,
        milliseconds_per_trajectory=1e3 * result.seconds / len(result.rows),
        commit=card.commit,
    )
    write_json(folder / "outcome.json", asdict(outcome) | {"hardware": hardware, "commit": card.commit})
    write_json(folder / "score.json", asdict(score))
    return score


def _score(folder: Path) -> Score:
    try:
        return Score(**read_object(folder / "score.json"))
    except TypeError as error:
        raise InputError(f"{folder / 'score.json'}: {error}; delete it, and the run is scored again") from error


def _row(lever: Lever, out: Path, n_seeds: int, failed: str | None) -> Row:
    folders = [run_folder(out, lever, seed) for seed in range(n_seeds)]
    runs = tuple(_score(folder) for folder in folders if (folder / "score.json").exists())

    def mean(name: str) -> float | None:
        there = [value for run in runs if (value := getattr(run, name)) is not None]
        return fmean(there) if there else None

    return Row(
        lever=lever.name,
        settings=shlex.join(lever.settings),
        val_rel_l2=mean("val_rel_l2"),
        spread=stdev(run.val_rel_l2 for run in runs) if len(runs) > 1 else None,
        seeds=len(runs),
        lat_error_ms=mean("lat_error_ms"),
        parameters=runs[0].parameters if runs else None,
        epochs=runs[0].epochs if runs else None,
        seconds=mean("seconds"),
        milliseconds_per_trajectory=mean("milliseconds_per_trajectory"),
        failed=failed,
        runs=runs,
    )


def _last_if_none(error: float | None) -> float:
    return error if error is not None and isfinite(error) else float("inf")


def _forget(device: torch.device):
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
