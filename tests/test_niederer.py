"""When a wave comes to the corners of a slab: the benchmark of Niederer et al. (2011), Phil. Trans. R. Soc. A 369, 4331.

As a script, `python tests/test_niederer.py EDGE_MM DT_MS MASS [DEVICE [FINER_ACROSS]]` prints the times; steps are compiled.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import with_diffusion
from scipy.sparse.linalg import cg

from gfunk.domain import Domain, cell_sizes, slab
from gfunk.laplacian import fem_laplacian
from gfunk.physics.monodomain import moments
from gfunk.physics.schemes import Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus

SIDES_MM = np.array([20.0, 7.0, 3.0])
ALONG, ACROSS = diffusivity(0.1334177), diffusivity(0.0176062)  # fibres run along the longest side
CUBE_MM = 1.5
STRENGTH = 50 / 1.4  # mV/ms: 50,000 uA/cm^3 over beta Cm
# P1 to P8, the corners, and P9, the middle.
PLACES_MM = np.array([*[(x, y, z) for z in (0, 3) for x in (0, 20) for y in (0, 7)], (10, 3.5, 1.5)])
# fenicsx-beat's published times at P2 to P9 by edge: the same tetrahedra, consistent mass, steps of 0.005 ms.
FENICSX_BEAT_MS = {
    0.5: [50.775, 33.825, 57.96, 13.97, 49.345, 32.945, 55.825, 25.595],
    0.2: [29.015, 31.05, 38.475, 9.315, 29.32, 31.08, 38.235, 18.045],
    0.1: [25.5, 31.26, 37.81, 7.99, 26.09, 31.72, 37.93, 17.835],
}


def slab_activation(
    edge_mm: float,
    scheme: Scheme,
    device: str = "cpu",
    finer_across: float = 1.0,
    stimuli: Callable[[Domain], list[Stimulus]] | None = None,
    compiles: bool | None = False,
) -> np.ndarray:
    """When v rises through 0 mV at P1 to P9. Edges across the fibres are shorter by a factor, if asked."""
    stretch = np.array([1.0, finer_across, finer_across])
    mesh = slab(*(SIDES_MM * stretch), edge_mm)
    domain = with_diffusion(replace(mesh, points=mesh.points / stretch), np.diag([ALONG, ACROSS, ACROSS]))
    distance = np.linalg.norm(domain.points[:, None] - PLACES_MM, axis=2)
    is_near = distance < distance.min(axis=0) + 1e-6  # several, where the middle of the slab is no node
    protocol = (stimuli or by_shares)(domain)
    times = np.full(len(PLACES_MM), np.nan)
    for moment in moments(
        [domain], [[protocol]], np.arange(2.0, 160.0, 2.0), cell="ten-tusscher", scheme=scheme, device=device,
        compiles=compiles, activated_mV=0.0,
    ):  # fmt: skip
        times = np.array([moment.activation_ms[near, 0].mean() for near in is_near.T])
        if np.isfinite(times).all():
            return times
    raise AssertionError(f"the wave has not come everywhere: {times}")


def by_shares(domain: Domain) -> list[Stimulus]:
    """A node is stimulated with the share of the brick around it that lies in the cube: the charge is that of the cube.

    With whole nodes only, the rim of the cube would be known to an edge, and times would converge with order 1.
    """
    half = np.array([along[along > 0].min() for along in domain.points.T]) / 2
    low, high = np.maximum(domain.points - half, 0), np.minimum(domain.points + half, SIDES_MM)
    share = np.clip((CUBE_MM - low) / (high - low), 0, 1).prod(axis=1).round(6)
    return [
        Stimulus(sites=tuple(map(tuple, domain.points[share == part].tolist())), strength=STRENGTH * part, radius_mm=1e-6)
        for part in np.unique(share[share > 0])
    ]


def by_elements(domain: Domain) -> list[Stimulus]:
    """As fenicsx-beat has it: a load on the cells that lie in the cube whole, seen through the consistent mass."""
    cells = domain.cells[(domain.points[domain.cells] <= CUBE_MM + 1e-9).all(axis=(1, 2))]
    load = np.bincount(cells.ravel(), np.repeat(cell_sizes(domain.points, cells) / 4, 4), minlength=domain.n_nodes)
    field, failed = cg(fem_laplacian(domain, "consistent").mass, load, rtol=1e-8)
    assert not failed
    chosen = np.abs(field) > 1e-3
    return [
        Stimulus(sites=(tuple(point),), strength=STRENGTH * part, radius_mm=1e-6)
        for point, part in zip(domain.points[chosen].tolist(), field[chosen].tolist(), strict=True)
    ]


ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize(
    ("edge_mm", "device"),
    [(0.5, "cpu"), pytest.param(0.2, "cpu", marks=pytest.mark.slow), pytest.param(0.1, "cuda", marks=ON_A_GPU)],
)
def test_the_wave_comes_when_it_does_in_another_code_on_the_same_mesh(edge_mm: float, device: str):
    times = slab_activation(edge_mm, Scheme(dt_ms=0.05), device, stimuli=by_elements)
    np.testing.assert_allclose(times[1:], FENICSX_BEAT_MS[edge_mm], rtol=0, atol=0.3)


@pytest.mark.slow
def test_consistent_mass_is_early_and_lumped_mass_late_and_they_close_in_on_each_other():
    coarse, fine = (
        [slab_activation(edge_mm, Scheme(dt_ms=0.05, mass=mass)) for mass in ("consistent", "lumped")]
        for edge_mm in (0.5, 0.2)
    )
    wide, narrow = ((late - early)[1:] for early, late in (coarse, fine))
    assert (narrow > 0).all()
    assert (narrow < wide / 2.5).all()


if __name__ == "__main__":
    import time

    edge, dt, mass, device, finer, *_ = [*sys.argv[1:], *["cpu", "1.0"][len(sys.argv) - 4 :]]
    began = time.perf_counter()
    found = slab_activation(float(edge), Scheme(dt_ms=float(dt), mass=mass), device, float(finer), compiles=None)
    print(*sys.argv[1:], *(f"{t:.3f}" for t in found), f"{time.perf_counter() - began:.0f} s", flush=True)
