"""From which of many places is an atrium activated soonest?"""

import numpy as np

from gfunk import left_atrium, sweep

atrium = left_atrium(seed=300_002)
found = sweep(atrium, 6, until_ms=80.0)  # six places spread evenly; or a list of places, or sweep(atrium, 6, region="LAA")

total = np.nanmax(found.activation_ms, axis=1)  # from each place until all is active
for site, ms in zip(found.sites, total, strict=True):
    print(f"from {np.round(site, 1)} mm: all active after {ms:.1f} ms")
print(f"soonest from {np.round(found.sites[total.argmin()], 1)}")
