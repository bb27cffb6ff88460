"""A wave on an atrium that no network has seen, by the model that comes with the package; numpy in, numpy out."""

import numpy as np

from gfunk import left_atrium, predict

atrium = left_atrium(seed=300_002)  # or read_domain("patient.vtk")
wave = predict(atrium, ["LSPV"], until_ms=60.0)  # a named part; or (x, y, z) in mm, or the number of a node

print(f"values: {wave.values_mV.shape[0]} times on {wave.values_mV.shape[1]:,} nodes")
print(f"all active after {np.nanmax(wave.activation_ms):.1f} ms; half of it after {np.nanmedian(wave.activation_ms):.1f} ms")
print("seconds:", {stage: round(seconds, 2) for stage, seconds in wave.seconds.items()})
print(*wave.warnings, sep="\n")  # what speaks against believing it: nothing here
