"""Trajectories as xarray datasets, and as NetCDF files, for notebooks and whatever else reads those."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.exporting.units import OF_TISSUE, problem_units
from gfunk.physics.waves import Paced
from gfunk.prediction import Prediction
from gfunk.recipes.recipe import RecipeProblem
from gfunk.runs import RECORDS
from gfunk.settings import from_json, to_json
from gfunk.store import Sample, read_object, read_sample, sample_seeds
from gfunk.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray

DATA_SUFFIXES = (".nc",)
DIMENSIONS = ("x", "y", "z")


def as_xarray(
    found: Sample | Trajectory | Paced | Prediction,
    domain: Domain | None = None,
    *,
    problem: RecipeProblem | None = None,
    attrs: Mapping[str, str | float] | None = None,
) -> "xarray.Dataset":
    """`values` over trajectory, time and node, with all that is known of the domain; times and lengths have their units.

    domain: of anything but a Sample, which has its own. problem: what a Sample was simulated from, which says its units.
    attrs: more to say of where it came from.
    """
    xarray = _xarray()
    if isinstance(found, Sample):
        domain = found.domain
    is_tissue = isinstance(found, Paced | Prediction)
    units = OF_TISSUE if is_tissue else problem_units(problem)
    values, times = (found.values_mV, found.times_ms) if is_tissue else (found.values, found.times)
    values = np.asarray(values)
    values = values if values.ndim == 3 else values[None]
    if domain is not None and domain.n_nodes != values.shape[2]:
        raise InputError(f"values at {values.shape[2]} nodes, but a domain of {domain.n_nodes}: give the one they belong to")
    data: dict[str, Any] = {"values": (("trajectory", "time", "node"), values, {"units": units.value})}
    for name in ("activation_ms", "repolarisation_ms"):
        if hasattr(found, name):
            at_nodes = np.atleast_2d(getattr(found, name))
            data[name.removesuffix("_ms")] = (("trajectory", "node"), at_nodes, {"units": "ms"})
    coordinates: dict[str, Any] = {"time": ("time", times, {"units": units.time})}
    if domain is not None:
        described, places = _described(domain, units.length)
        data |= described
        coordinates |= places
    said: dict[str, Any] = dict(attrs or {})
    if problem is not None:
        said["problem"] = json.dumps(to_json(problem))
    if isinstance(found, Sample):
        said["seed"] = found.seed
    if isinstance(found, Prediction):
        data["sites"] = (("site", "dim"), found.sites, {"units": "mm"})
        said |= {"first_ms": found.first_ms, "warnings": "; ".join(found.warnings)}
    return xarray.Dataset(data, coordinates, said)


def write_netcdf(path: Path, source: Path) -> tuple[int, ...]:
    """A stored sample, or all of a data folder, as NetCDF 4: of a folder each sample is a group named by its seed.

    Gives the seeds.
    """
    check_data_path(path)
    if source.is_dir():
        folder, seeds = source, sample_seeds(source)
    elif source.suffix == ".safetensors" and source.stem.isdecimal():
        folder, seeds = source.parent, [int(source.stem)]
    else:
        raise InputError(f"{source}: neither a data folder nor one of its samples; make some with `gfunk simulate`")
    about = read_object(folder / "dataset.json") if (folder / "dataset.json").exists() else {}
    problem = from_json(about["problem"], RECORDS) if "problem" in about else None
    attrs = {"commit": about["commit"]} if "commit" in about else {}
    samples = (as_xarray(read_sample(folder, seed), problem=problem, attrs=attrs) for seed in seeds)
    _write(path, samples, None if folder != source else [f"{seed:06d}" for seed in seeds])
    return tuple(seeds)


def check_data_path(path: Path):
    """Refuse what trajectories can't be written as, or where xarray is missing."""
    if path.suffix.lower() not in DATA_SUFFIXES:
        raise InputError(f"{path}: trajectories are written as {', '.join(DATA_SUFFIXES)}, not {path.suffix!r}")
    _xarray()


def _described(domain: Domain, length: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables and coordinates of a domain."""
    dimensions = DIMENSIONS[: domain.points.shape[1]]
    coordinates: dict[str, Any] = {
        name: ("node", column, {"units": length}) for name, column in zip(dimensions, domain.points.T, strict=True)
    }
    data: dict[str, Any] = {
        "cells": (("cell", "corner"), domain.cells),
        "fibres": (("node", "dim"), domain.fibres),
        "diffusion": ((domain.diffusion_at, "dim", "other_dim"), domain.diffusion),
    }
    coordinates |= {"dim": list(dimensions), "other_dim": list(dimensions)}
    if domain.regions:
        is_in = np.zeros((len(domain.regions), domain.n_nodes), dtype=bool)
        for row, nodes in zip(is_in, domain.regions.values(), strict=True):
            row[nodes] = True
        data["is_in_region"] = (("region", "node"), is_in)
        coordinates["region"] = list(domain.regions)
    return data, coordinates


def _write(path: Path, datasets: Iterable["xarray.Dataset"], groups: list[str] | None):
    """One dataset, or one a group; whole or not at all, and never more than one in memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder) / path.name
            for number, dataset in enumerate(datasets):
                # Tissue at rest packs well: waves shrink to 0.6 of their size, heat hardly.
                packed = {"values": {"zlib": True, "complevel": 4, "shuffle": True}}
                dataset.to_netcdf(
                    draft, mode="a" if number else "w", group=groups[number] if groups else None,
                    engine="h5netcdf", encoding=packed,
                )  # fmt: skip
            os.replace(draft, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error})") from error


def _xarray() -> Any:
    try:
        import h5netcdf  # noqa: F401
        import xarray
    except ImportError as error:
        raise InputError("datasets for notebooks need xarray and h5netcdf: pip install 'gfunk[notebooks]'") from error
    return xarray
