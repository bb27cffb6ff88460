"""The sheet by gfunk; arguments after the sheet: the order of the cells' steps, and the mass."""

import sys
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import torch
from sheet import Sheet, asked_sheet, print_result, seconds_of  # beside this script

from gfunk.domain import Domain, make_domain, rectangle
from gfunk.physics.monodomain import moments
from gfunk.physics.schemes import Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Moment


def tissue(sheet: Sheet) -> Domain:
    mesh = rectangle(sheet.side_mm, sheet.side_mm, sheet.edge_mm)
    tensor = np.diag([diffusivity(sheet.along_mS_per_mm), diffusivity(sheet.across_mS_per_mm)])
    return make_domain(mesh.points, mesh.cells, np.tile(tensor, (mesh.n_nodes, 1, 1)))


def corner(sheet: Sheet) -> list[Stimulus]:
    """One stimulus for each strength, on its nodes and no other."""
    points, shares = sheet.points_mm(), sheet.stimulated_shares()
    return [
        Stimulus(
            sites=tuple(map(tuple, points[shares == share].tolist())),
            duration_ms=sheet.duration_ms,
            strength=share * sheet.strength_mV_per_ms,
            radius_mm=1e-6,
        )
        for share in np.unique(shares[shares > 0]).tolist()
    ]


def begun(sheet: Sheet, scheme: Scheme, until_ms: float) -> Iterator[Moment]:
    """The wave, a moment every ms, with set-up and the first moment done."""
    times = np.append(np.arange(0, until_ms - 1e-9), until_ms)
    found = moments([tissue(sheet)], [[corner(sheet)]], times, scheme=scheme, activated_mV=sheet.activated_mV)
    next(found)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    sheet = asked_sheet()
    scheme = Scheme(dt_ms=sheet.dt_ms, order=int(sys.argv[2]), mass=sys.argv[3])  # pyright: ignore[reportArgumentType]
    begun_runs, last = [], []

    def set_up():
        list(begun(sheet, scheme, sheet.warm_up_ms))
        begun_runs.append(begun(sheet, scheme, sheet.until_ms))

    setup = seconds_of(set_up)
    stepping = seconds_of(lambda: last.extend(begun_runs[0]))
    print_result(sheet, version("gfunk"), setup, stepping, last[-1].activation_ms[:, 0])
