"""Models that come with the package: `weights/NAME.safetensors`, and beside it `NAME.json`, the card that tells of it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from torch import nn

from gfunk.checkpoints import load_weights
from gfunk.errors import InputError
from gfunk.operators.make import make_operator, n_parameters
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.runs import RECORDS, RunCard, load_run, read_bounds
from gfunk.settings import from_json, to_json
from gfunk.simulation import split_seeds
from gfunk.store import (
    CorruptFile,
    dataset_fingerprint,
    read_arrays,
    read_json,
    read_object,
    sample_seeds,
    write_arrays,
    write_bytes,
    write_json,
)
from gfunk.trust import Bounds, Seen, Trust

CARD_SCHEMA = 1
MOST_BYTES = 5_000_000  # of all weights together
LICENCE = "MIT"

Precision = Literal["float32", "float16"]


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The first n samples of a split, from this seed up."""

    first: int
    n: int


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a run learned from. is_checked: the samples were at hand when it was shipped, and have its fingerprint."""

    fingerprint: str
    train: Seeds
    val: Seeds
    is_checked: bool


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a shipped model is, what it learned from, how it was trained and tested, and where it ends."""

    name: str
    recipe: str
    problem: RecipeProblem
    variant: Variant
    parameters: int
    data: TrainingData
    commit: str  # of training
    training: Mapping[str, Any]  # how it ended, on what, how long it took
    tested: Mapping[str, Any]  # the recorded row: errors, on how many, by which command
    limits: str
    licence: str
    precision: Precision
    sha256: str  # of the file of weights
    trust: Trust = field(default_factory=Trust)


def weights_folder() -> Path:
    return Path(__file__).parent / "weights"


def pretrained_names() -> list[str]:
    return sorted(path.stem for path in weights_folder().glob("*.json"))


def load_pretrained(name: str) -> tuple[nn.Module, ModelCard]:
    """A shipped model, ready to predict, and its card."""
    card = read_model_card(name)
    path = _weights(name)
    if not path.exists():
        raise InputError(f"{path}: no weights there, though {name} has a card: install gfunk again")
    if hashlib.sha256(path.read_bytes()).hexdigest() != card.sha256:
        raise CorruptFile(f"{path}: not the weights its card speaks of (another sha256): install gfunk again")
    operator = make_operator(card.variant.network)
    load_weights(path, operator)
    return operator.eval(), card


def read_model_card(name: str) -> ModelCard:
    known = pretrained_names()
    if name not in known:
        raise InputError(
            f"no shipped model {name!r}, nor a run folder of that name; shipped are {', '.join(known) or 'none'}"
        )
    path = weights_folder() / f"{name}.json"
    content = read_object(path)
    if content.pop("schema", None) != CARD_SCHEMA:
        raise InputError(f"{path}: a card of another version; this one reads schema {CARD_SCHEMA}")
    records = (*RECORDS, Bounds, Seeds, Seen, TrainingData, Trust)
    try:
        return ModelCard(
            **{each: from_json(value, records) if _is_record(value) else value for each, value in content.items()}
        )
    except TypeError as error:
        raise CorruptFile(f"{path}: {error}") from error


def n_bytes(name: str) -> int:
    return _weights(name).stat().st_size


def training_data(run: RunCard, data: Path | None, n_train: int | None, n_val: int | None) -> TrainingData:
    """Which samples a run learned from: those of the folder, if they have its fingerprint; without one, as many as said."""
    if data is None:
        if n_train is None or n_val is None:
            raise InputError("say what it was trained on: --data FOLDER, or, where that is gone, --n-train and --n-val")
        train, val = split_seeds("train", n_train), split_seeds("val", n_val)
    else:
        train, val = sample_seeds(data / "train")[:n_train], sample_seeds(data / "val")[:n_val]
        found = f"{dataset_fingerprint(data / 'train', train)} {dataset_fingerprint(data / 'val', val)}"
        if found != run.data_fingerprint:
            raise InputError(
                f"{data}: {len(train)} training and {len(val)} validation samples are not what the run was trained on "
                "(another fingerprint); --n-train and --n-val say how many it had"
            )
    return TrainingData(
        fingerprint=run.data_fingerprint,
        train=Seeds(first=train[0], n=len(train)),
        val=Seeds(first=val[0], n=len(val)),
        is_checked=data is not None,
    )


def ship(
    folder: Path, *, name: str | None, record: Path, label: str | None, limits: str,
    data: Path | None, n_train: int | None, n_val: int | None,
    precision: Precision | None = None, unfinished: bool = False,
) -> ModelCard:  # fmt: skip
    """Put a run's best weights among those that come with the package, with a card.

    record, label: the row that `gfunk evaluate --record` wrote of this run. precision: by default float32, or float16 where
    the weights would not fit else. Bounds of its errors are those that `gfunk calibrate` found, if it did.
    """
    operator, run = load_run(folder)
    name = run.recipe if name is None else name
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InputError(f"name {name!r}: lower-case letters and digits, with - between them")
    if not limits.strip():
        raise InputError("--limits: say in plain words where the model ends")
    outcome = read_object(folder / "outcome.json") if (folder / "outcome.json").exists() else None
    if not unfinished and (outcome or {}).get("reason") not in ("done", "no better"):
        raise InputError(f"{folder}: not trained to its end: go on with `gfunk train --resume`, or say --unfinished")
    learned_from = training_data(run, data, n_train, n_val)
    tested = _tested(record, run, label or run.variant.name, outcome)
    content, precision = _packed(folder / "best.safetensors", _room(name), precision)
    card = ModelCard(
        name=name, recipe=run.recipe, problem=run.problem, variant=run.variant, parameters=n_parameters(operator),
        data=learned_from, commit=run.commit, training=outcome or _logged(folder), tested=tested, limits=limits.strip(),
        licence=LICENCE, precision=precision, sha256=hashlib.sha256(content).hexdigest(),
        trust=Trust(seen=read_seen(folder)).with_bounds(read_bounds(folder)),
    )  # fmt: skip
    write_bytes(_weights(name), content)
    write_model_card(card)
    return card


def write_model_card(card: ModelCard):
    about = {each: to_json(getattr(card, each)) for each in card.__dataclass_fields__}
    write_json(weights_folder() / f"{card.name}.json", {"schema": CARD_SCHEMA} | about)


def _weights(name: str) -> Path:
    return weights_folder() / f"{name}.safetensors"


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and "is" in value


def _tested(path: Path, run: RunCard, label: str, outcome: dict[str, Any] | None) -> dict[str, Any]:
    """The newest row of this label that was measured on this very run and its own problem, less what the card says."""
    rows = [row for row in read_json(path) if "rel_l2" in row and row.get("label") == label]
    rows = [row for row in rows if (row.get("recipe"), row.get("variant")) == (run.recipe, run.variant.name)]
    if not rows:
        raise InputError(
            f"{path}: no row {label!r} of {run.recipe}/{run.variant.name}; write one: `gfunk evaluate RUN --record {path}`"
        )
    # `gfunk evaluate` copies the run's outcome.json into the row, seconds and all: no two runs share it.
    own = [
        row for row in rows if row.get("trained") == outcome and is_of(from_json(row.get("problem"), RECORDS), run.problem)
    ]
    if not own:
        raise InputError(
            f"{path}: its rows {label!r} are of another run or problem; test this run: `gfunk evaluate RUN --record {path}`"
        )
    said_elsewhere = ("recipe", "variant", "problem", "parameters", "trained")
    return {key: value for key, value in own[-1].items() if key not in said_elsewhere}


def read_seen(folder: Path) -> Seen | None:
    """Between what bounds lay what a run learned from, if it was written down."""
    path = folder / "seen.json"
    return from_json(read_object(path), (Seen,)) if path.exists() else None


def is_of(tested: Any, learned: RecipeProblem) -> bool:
    """Whether both are one problem, from however many sites each domain is paced."""
    if isinstance(tested, AtriumProblem) and isinstance(learned, AtriumProblem):
        tested = replace(tested, n_sites=learned.n_sites)
    return tested == learned


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError as error:
        raise CorruptFile(f"{path}: not one JSON object a line ({error})") from error


def _logged(folder: Path) -> dict[str, Any]:
    """How a training that never ended stood, by its log."""
    if not (folder / "log.jsonl").exists():
        raise InputError(f"{folder}: has neither outcome.json nor log.jsonl, so nothing says how it was trained")
    epochs = read_lines(folder / "log.jsonl")
    validated = [epoch for epoch in epochs if epoch["validation"] is not None]
    if not validated:
        raise InputError(f"{folder / 'log.jsonl'}: no epoch was validated, so none is the best")
    best = min(validated, key=lambda epoch: epoch["validation"])
    return {
        "reason": "stopped", "epochs": epochs[-1]["number"], "best_epoch": best["number"],
        "best_validation": best["validation"], "seconds_without_validation": sum(epoch["seconds"] for epoch in epochs),
    }  # fmt: skip


def _room(name: str) -> int:
    """Bytes left for a model; one of the same name makes way."""
    return MOST_BYTES - sum(n_bytes(path.stem) for path in weights_folder().glob("*.safetensors") if path.stem != name)


def _packed(path: Path, room: int, precision: Precision | None) -> tuple[bytes, Precision]:
    """The file of weights, and the precision that was asked for, or else the best that fits."""
    arrays, _ = read_arrays(path)
    content = b""
    for each in ("float32", "float16") if precision is None else (precision,):
        content = _file(arrays if each == "float32" else _halved(arrays, path))
        if len(content) <= room:
            return content, each
    raise InputError(
        f"{path}: {len(content):,} bytes in {precision or 'float16'}, but only {max(room, 0):,} are left of "
        f"{MOST_BYTES:,} for all shipped weights: ship a smaller network"
    )


def _halved(arrays: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """Real weights rounded to float16, relative error up to 2^-11; complex and whole numbers stay."""
    halved = {name: _half(array) if array.dtype == np.float32 else array for name, array in arrays.items()}
    for name, array in halved.items():
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {name} has numbers beyond 65,504, the largest of float16: ship it in float32")
    return halved


def _half(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _file(arrays: Mapping[str, np.ndarray]) -> bytes:
    with TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "draft.safetensors", arrays)
        return (Path(folder) / "draft.safetensors").read_bytes()
