"""Action potentials on a small sheet of atrial tissue, solved: when does the wave come where?"""

import numpy as np

from gfunk import diffusivity, fibre_tensors, make_domain, rectangle, simulate

sheet = rectangle(8.0, 4.0, 0.2)  # mm
angle = 0.2 * sheet.points[:, 0]  # fibres that turn from left to right
fibres = np.stack([np.cos(angle), np.sin(angle)], axis=1)
across = diffusivity(0.0625)  # from mS/mm to mm2/ms
tissue = make_domain(sheet.points, sheet.cells, fibre_tensors(fibres, 5 * across, across), fibres=fibres)

wave = simulate(tissue, [(0.0, 0.0)], until_ms=30.0)
print(f"{tissue.n_nodes:,} nodes, {len(wave.times_ms)} times, {wave.values_mV.min():.0f} to {wave.values_mV.max():.0f} mV")
for corner in [(8.0, 0.0), (0.0, 4.0), (8.0, 4.0)]:
    node = np.linalg.norm(tissue.points - corner, axis=1).argmin()
    print(f"the wave reaches {corner} mm after {wave.activation_ms[0, node]:.1f} ms")
