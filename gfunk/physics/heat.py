"""Anisotropic heat, du/dt = div(K grad u) + source, on any domain: Crank-Nicolson with a damped start."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from gfunk.errors import InputError
from gfunk.laplacian import Laplacian
from gfunk.sparse_solver import symmetric_solver
from gfunk.trajectory import Trajectory


def simulate_heat(
    laplacian: Laplacian,
    initial: Float[np.ndarray, " node"],
    times: Float[np.ndarray, " time"],
    *,
    steps_per_save: int,
    load: Callable[[float], Float[np.ndarray, " node"]] | None = None,
    damped_steps: int = 2,
) -> Trajectory:
    """Solve M du/dt + S u = load(t) (Eq. 14) and keep u at equally spaced times, the first of them included.

    Crank-Nicolson is of order 2 but leaves stiff modes ringing, so each of the first `damped_steps` steps is made of two
    backward-Euler half steps (Rannacher): the same matrix M + dt/2 S serves both. What `load` adds is integrated over
    hat functions already (mass times source, plus flux through the boundary).
    """
    if not np.isfinite(initial).all():
        raise InputError(f"the initial field is not finite at node {np.flatnonzero(~np.isfinite(initial))[0]}")
    if initial.shape != (laplacian.n_nodes,) or steps_per_save < 1:
        raise InputError(
            f"an initial value for each of {laplacian.n_nodes} nodes and at least one step a save are needed, "
            f"not {initial.shape} values and {steps_per_save} steps"
        )
    spacing = np.diff(times)
    if not (len(times) >= 2 and (spacing > 0).all() and np.allclose(spacing, spacing[0], rtol=1e-6)):
        raise InputError("the saved times must rise in equal steps")
    dt = float(spacing[0]) / steps_per_save
    stiffness, mass = laplacian.stiffness, laplacian.mass
    half_step = symmetric_solver(mass + dt / 2 * stiffness)

    def loaded(t: float) -> Float[np.ndarray, " node"] | float:
        return 0.0 if load is None else dt / 2 * load(t)

    u, saved = initial.astype(np.float64), [initial.astype(np.float64)]
    for step in range(steps_per_save * (len(times) - 1)):
        t = float(times[0]) + step * dt
        if step < damped_steps:
            for middle in (t + dt / 2, t + dt):
                u = half_step(mass @ u + loaded(middle))
        else:
            u = half_step(mass @ u - dt / 2 * (stiffness @ u) + loaded(t) + loaded(t + dt))
        if (step + 1) % steps_per_save == 0:
            saved.append(u)
    return Trajectory(times=np.asarray(times, dtype=np.float64), values=np.stack(saved))
