"""Waves on a surface, written for numpy, ParaView or openCARP's tools."""

from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.files.igb import write_igb
from gfunk.files.vtk_write import write_series, write_vtp
from gfunk.store import write_bytes

WAVE_SUFFIXES = (".npz", ".pvd", ".vtp", ".igb")


def check_wave_path(path: Path):
    """Refuse what no wave can be written as."""
    if path.suffix.lower() not in WAVE_SUFFIXES:
        raise InputError(f"{path}: a wave is written as {', '.join(WAVE_SUFFIXES)}, not {path.suffix!r}")


def write_wave(
    path: Path,
    domain: Domain,
    times_ms: Float[np.ndarray, " time"],
    values_mV: Float[np.ndarray, "time node"],
    activation_ms: Float[np.ndarray, " node"],
    sites: Float[np.ndarray, "place 3"],
):
    """`.npz`: all of it; `.pvd`: a film, a `.vtp` for each time; `.vtp`: the map of activation; `.igb`: voltages alone."""
    check_wave_path(path)
    match path.suffix.lower():
        case ".npz":
            buffer = BytesIO()
            np.savez(
                buffer, points_mm=domain.points, cells=domain.cells, times_ms=times_ms, values_mV=values_mV,
                activation_ms=activation_ms, sites_mm=sites,
            )  # fmt: skip
            write_bytes(path, buffer.getvalue())
        case ".pvd":
            always = {"activation_ms": activation_ms}
            write_series(path, domain.points, domain.cells, times_ms, {"v_mV": values_mV}, always)
        case ".vtp":
            write_vtp(path, domain.points, domain.cells, {"activation_ms": activation_ms, "fibre": domain.fibres})
        case _:
            write_igb(path, values_mV, times_ms)
