"""The sheet by TorchCor: P1 elements with consistent mass, theta scheme, conjugate gradients (always float64)."""

import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sheet import Sheet, asked_sheet, print_result, seconds_of  # beside this script
from torchcor.ionic import CourtemancheRamirezNattel  # pyright: ignore[reportMissingImports]
from torchcor.simulator import Monodomain  # pyright: ignore[reportMissingImports]


def write_mesh(sheet: Sheet, folder: Path):
    """Its own files: points in um, cells, fibres, stimulated nodes."""
    points = sheet.points_mm()
    n_side = sheet.n_side
    corner = (np.arange(n_side - 1)[:, None] * n_side + np.arange(n_side - 1)).ravel()
    right, up, across = corner + n_side, corner + 1, corner + n_side + 1
    cells = np.concatenate([np.stack([corner, right, across], 1), np.stack([corner, across, up], 1)])
    lines = {
        "sheet.pts": [f"{1000 * x:.6f} {1000 * y:.6f} 0" for x, y in points],
        "sheet.elem": [f"Tr {a} {b} {c} 1" for a, b, c in cells],
        "sheet.lon": ["1 0 0"] * len(cells),
    }
    for name, rows in lines.items():
        (folder / name).write_text("\n".join([str(len(rows)), *rows]) + "\n")
    chosen = np.flatnonzero(sheet.stimulated_shares() > 0.5)
    (folder / "corner.vtx").write_text("\n".join([str(len(chosen)), "extra", *map(str, chosen)]) + "\n")


def prepared(sheet: Sheet, folder: Path, dtype: torch.dtype) -> Monodomain:
    device = torch.device("cpu")
    cell = CourtemancheRamirezNattel(sheet.dt_ms, device=device, dtype=dtype)
    solver = Monodomain([cell], T=sheet.until_ms, dt=sheet.dt_ms, device=device, dtype=dtype)
    solver.load_mesh(path=str(folder))
    # Half a step longer: it adds up time steps, and rounding would lose the last one. In uA/cm^2, which is mV/ms.
    solver.add_stimulus(
        str(folder / "corner.vtx"),
        start=0.0,
        duration=sheet.duration_ms + sheet.dt_ms / 2,
        intensity=sheet.strength_mV_per_ms,
    )
    solver.add_conductivity([1], il=sheet.along_mS_per_mm, it=sheet.across_mS_per_mm)
    solver.assemble()
    return solver


def states(solver: Monodomain, sheet: Sheet, n_steps: int) -> Iterator[torch.Tensor]:
    """v at rest and after every step: its own loop, less its printing."""
    v = solver.ionic_models[0].initialize(sheet.n_nodes)
    solver.cg.initialize(x=v, linear_guess=True)
    yield v
    for number in range(n_steps):
        # Tolerances as in its README.
        v, n_iterations, *_ = solver.step(v, (number + 1) * sheet.dt_ms, a_tol=1e-5, r_tol=1e-5, max_iter=100)
        if n_iterations >= 100:
            raise SystemExit(f"conjugate gradients did not converge in step {number}")
        yield v


def activation_ms(solver: Monodomain, sheet: Sheet) -> np.ndarray:
    found = np.full(sheet.n_nodes, np.nan)
    before = np.full(sheet.n_nodes, np.nan)
    for number, state in enumerate(states(solver, sheet, sheet.n_steps)):
        v = state.numpy().astype(float)  # a copy: it overwrites its own
        rises = (before < sheet.activated_mV) & (v >= sheet.activated_mV) & np.isnan(found)
        share = (sheet.activated_mV - before[rises]) / (v[rises] - before[rises])
        found[rises] = sheet.dt_ms * (number - 1 + share)
        before = v
    return found


def set_up(sheet: Sheet, dtype: torch.dtype) -> Monodomain:
    with tempfile.TemporaryDirectory() as folder:
        write_mesh(sheet, Path(folder))
        solver = prepared(sheet, Path(folder), dtype)
    # Compilation.
    for _ in states(solver, sheet, round(sheet.warm_up_ms / sheet.dt_ms)):
        pass
    return solver


if __name__ == "__main__":
    torch.set_num_threads(1)
    sheet, dtype = asked_sheet(), getattr(torch, sys.argv[2])
    solvers = []
    setup = seconds_of(lambda: solvers.append(set_up(sheet, dtype)))
    # Looking for activations isn't timed: it would read them off its snapshots.
    stepping = seconds_of(lambda: deque(states(solvers[0], sheet, sheet.n_steps), maxlen=1))
    print_result(sheet, version("torchcor"), setup, stepping, activation_ms(solvers[0], sheet))
