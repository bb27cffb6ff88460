"""A left atrium, its Laplacian and its lowest modes; heat that settles, mode by mode."""

import numpy as np

from gfunk import laplacian, left_atrium, lowest_modes

atrium = left_atrium(seed=7, edge_mm=1.5)  # every seed another; with fibres and named parts
matrices = laplacian(atrium)  # stiffness S and mass M of finite elements, with diffusion faster along the fibres
modes = lowest_modes(matrices, 50)  # S psi = lambda M psi
print(f"{atrium.n_nodes:,} nodes, {matrices.mass.sum() / 100:.0f} cm2; parts: {', '.join(atrium.regions)}")
print("eigenvalues in 1/ms:", np.round(modes.eigenvalues[:6], 5))

# Modes are orthonormal by mass: a field is the sum of its parts along them, and diffusion shrinks each at its own rate.
psi = modes.eigenvectors
heat = np.exp(-((atrium.points - atrium.points[0]) ** 2).sum(axis=1) / 200)
parts = psi.T @ (matrices.mass @ heat)
for time_ms in (100, 1000, 10000):
    later = psi @ (np.exp(-time_ms * modes.eigenvalues) * parts)
    print(f"after {time_ms:5} ms: warmest {later.max():.3f}, coldest {later.min():.3f}, mean as before")
