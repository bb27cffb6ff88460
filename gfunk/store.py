"""Trajectories and spectra on disk: one documented form, checksums, atomic writes.

A dataset is a folder with `dataset.json` (what it is, how it was made) and one `SEED.safetensors` per domain, holding
points, cells, diffusion, fibres, times and values (trajectory, time, node). A file is whole or absent: it is written
under another name, then renamed. Anything whose checksum fails is not trusted.
"""

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian
from gfunk.spectrum import SPECTRUM_VERSION, Spectrum, lowest_modes

DATASET_SCHEMA = 1


class CorruptFile(InputError):
    """A file that is truncated, altered, or of another kind."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one dataset file holds: a domain and the trajectories on it."""

    seed: int
    domain: Domain
    times: Float[np.ndarray, " time"]
    values: Float[np.ndarray, "trajectory time node"]


def cached_modes(
    laplacian: Laplacian, n_modes: int, folder: Path | None, find: Callable[[Laplacian, int], Spectrum] | None = None
) -> Spectrum:
    """The lowest modes, from `folder` if the very same matrices were solved before. None: no cache.

    find: what finds them in place of `lowest_modes`; it wants a folder of its own.
    """
    find = find or lowest_modes
    if folder is None:
        return find(laplacian, n_modes)
    path = folder / f"{spectrum_key(laplacian, n_modes)}.safetensors"
    try:
        arrays, _ = read_arrays(path)
        return Spectrum(eigenvalues=arrays["eigenvalues"], eigenvectors=arrays["eigenvectors"])
    except (FileNotFoundError, CorruptFile, KeyError):
        spectrum = find(laplacian, n_modes)
        write_arrays(path, {"eigenvalues": spectrum.eigenvalues, "eigenvectors": spectrum.eigenvectors})
        return spectrum


def spectrum_key(laplacian: Laplacian, n_modes: int) -> str:
    """Everything that made the modes: both matrices to the last bit, how many, and the method's version."""
    arrays = {
        f"{name}.{part}": getattr(matrix, part)
        for name, matrix in (("stiffness", laplacian.stiffness), ("mass", laplacian.mass))
        for part in ("data", "indices", "indptr")
    }
    return fingerprint(arrays, n_modes=n_modes, version=SPECTRUM_VERSION)


def write_sample(folder: Path, sample: Sample):
    domain = sample.domain
    arrays = {
        "points": domain.points,
        "cells": domain.cells,
        "diffusion": domain.diffusion,
        "fibres": domain.fibres,
        "times": sample.times,
        "values": sample.values.astype(np.float32),
    }
    note = {"schema": str(DATASET_SCHEMA), "seed": str(sample.seed), "diffusion_at": domain.diffusion_at}
    write_arrays(sample_path(folder, sample.seed), arrays, note)


def read_sample(folder: Path, seed: int) -> Sample:
    path = sample_path(folder, seed)
    try:
        arrays, note = read_arrays(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such sample; make it with `gfunk simulate`") from None
    if note.get("schema") != str(DATASET_SCHEMA):
        raise InputError(
            f"{path}: dataset schema {note.get('schema')}, this version reads {DATASET_SCHEMA}: simulate it again"
        )
    if note.get("seed") != str(seed):
        raise CorruptFile(f"{path}: holds sample {note.get('seed')}, so it was renamed: delete it and make it again")
    return Sample(seed=seed, domain=_domain(arrays, note), times=arrays["times"], values=arrays["values"])


def peeked_domain(folder: Path, seed: int) -> Domain:
    """A sample's domain without its values, unchecked: for those who see to it that all of the file is read and checked."""
    with safe_open(sample_path(folder, seed), framework="numpy") as file:
        names = ("points", "cells", "diffusion", "fibres")
        return _domain({name: file.get_tensor(name) for name in names}, file.metadata())


def _domain(arrays: Mapping[str, np.ndarray], note: Mapping[str, str]) -> Domain:
    return Domain(
        points=arrays["points"],
        cells=arrays["cells"],
        diffusion=arrays["diffusion"],
        diffusion_at="cell" if note["diffusion_at"] == "cell" else "node",
        fibres=arrays["fibres"],
    )


def sample_path(folder: Path, seed: int) -> Path:
    return folder / f"{seed:06d}.safetensors"


def is_sample_whole(folder: Path, seed: int) -> bool:
    """True if this sample is there, not another under its name, and its checksum holds."""
    try:
        _, note = read_arrays(sample_path(folder, seed))
    except (FileNotFoundError, CorruptFile):
        return False
    return note.get("seed") == str(seed)


def sample_seeds(folder: Path) -> list[int]:
    """Seeds of the samples in a dataset folder, in order."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such dataset; make it with `gfunk simulate`")
    names = [path.stem for path in folder.glob("*.safetensors")]
    # As sample_path writes them; other files are not ours.
    seeds = sorted(int(name) for name in names if name.isdecimal() and name == f"{int(name):06d}")
    if not seeds:
        raise InputError(f"{folder}: holds no trajectories; make them with `gfunk simulate`")
    return seeds


def dataset_fingerprint(folder: Path, seeds: Sequence[int]) -> str:
    """A digest of the samples' checksums: the same data, the same fingerprint."""
    digest = hashlib.sha256()
    for seed in seeds:
        path = sample_path(folder, seed)
        try:
            with safe_open(path, framework="numpy") as file:
                digest.update((file.metadata() or {}).get("checksum", "").encode())
        except (SafetensorError, OSError) as error:
            raise CorruptFile(f"{path}: not a readable safetensors file ({error}): simulate it again") from error
    return digest.hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], note: Mapping[str, str] | None = None):
    """Write arrays and a note under a checksum, whole or not at all, whoever else writes the same file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    note = dict(note or {})
    note["checksum"] = fingerprint(arrays, **note)
    write_bytes(path, _with_sorted_note(save(arrays, metadata=note)))


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What `write_arrays` wrote; FileNotFoundError if absent, CorruptFile if it is not what was written."""
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="numpy") as file:
            note = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CorruptFile(f"{path}: not a readable safetensors file ({error})") from error
    checksum = note.pop("checksum", None)
    if checksum != fingerprint(arrays, **note):
        raise CorruptFile(f"{path}: its checksum fails, so it was altered or cut short: delete it and make it again")
    return arrays, note


def write_json(path: Path, content: Any):
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path}: not valid JSON ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise CorruptFile(f"{path}: one JSON object expected, not {type(content).__name__}")
    return content


def check_terms(path: Path, terms: Mapping[str, object]):
    """What is in a folder goes on only on the terms that it was begun on, which the file tells."""
    found = read_object(path) if path.exists() else terms
    for name, value in terms.items():
        if found.get(name) != value:
            known = f" ({found.get(name)}, not {value})" if len(str(value)) < 100 else ""
            raise InputError(f"{path.parent}: was begun with other {name}{known}: compare in another folder")


def write_bytes(path: Path, content: bytes):
    """Write a file so that a reader, or a crash at any moment, sees the old one or the new one, never a part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
            try:
                draft.write(content)
                draft.flush()
                os.fsync(draft.fileno())
                os.chmod(draft.name, 0o666 & ~_umask())
                os.replace(draft.name, path)
            except BaseException:
                os.unlink(draft.name)
                raise
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error})") from error


# As write_bytes names a sample on its way: other hidden files are not ours to remove.
_DRAFT = re.compile(r"\.[0-9]{6,}\.safetensors\.[a-z0-9_]{8}")


def remove_old_drafts(folder: Path, older_than_seconds: float = 3600.0):
    """Remove what writers killed in the middle left behind. A draft lives for moments; a young one may be in use."""
    for draft in (path for path in folder.glob(".*.safetensors.*") if _DRAFT.fullmatch(path.name)):
        # Another process may be cleaning up too.
        with suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > older_than_seconds:
                draft.unlink()


def _with_sorted_note(file: bytes) -> bytes:
    """The same safetensors file with its note in order: the library shuffles it, and equal content must be equal bytes."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[start:]


def _umask() -> int:
    """What the user takes away from new files' permissions; reading it means setting it for a moment."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def fingerprint(arrays: Mapping[str, np.ndarray], **settings: object) -> str:
    """A digest of every array's name, type, shape and bytes, and of every setting."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def commit() -> str:
    """The commit this code runs from, with a + if files differ from it; `unknown` outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GFUNK_COMMIT", "unknown")
    return head.stdout.strip()
