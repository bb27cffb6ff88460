"""The sheet by finitewave: finite differences on a grid, explicit Euler and Rush-Larsen, float64, compiled by numba."""

from importlib.metadata import version

import finitewave  # pyright: ignore[reportMissingImports]
import numpy as np
from sheet import Sheet, asked_sheet, print_result, seconds_of  # beside this script

CAPACITANCE_PER_VOLUME = 1.4  # uF/mm^3, 140/mm times 0.01 uF/mm^2


def prepared(sheet: Sheet) -> finitewave.Courtemanche:
    n_side = sheet.n_side
    # A frame of empty nodes bounds its tissue. No current flows half an edge beyond the last node, not at it.
    tissue = finitewave.CardiacTissue((n_side + 2, n_side + 2))
    tissue.fibers = np.zeros((n_side + 2, n_side + 2, 2))
    tissue.fibers[..., 0] = 1
    model = finitewave.Courtemanche()
    model.dt, model.dr, model.prog_bar = sheet.dt_ms, sheet.edge_mm, False
    model.D_model = sheet.along_mS_per_mm / CAPACITANCE_PER_VOLUME
    # Anisotropy belongs to the stencil; on the tissue it would be ignored.
    model.stencil = finitewave.AsymmetricStencil2D()
    model.stencil.D_al, model.stencil.D_ac = 1.0, sheet.across_mS_per_mm / sheet.along_mS_per_mm
    model.cardiac_tissue = tissue

    chosen = np.zeros(tissue.mesh.shape)
    chosen[1:-1, 1:-1] = (sheet.stimulated_shares() > 0.5).reshape(n_side, n_side)
    # It counts both ends: this many steps are exactly the duration.
    duration = sheet.duration_ms - 1.5 * sheet.dt_ms
    model.stim_sequence = finitewave.StimSequence()
    model.stim_sequence.add_stim(finitewave.StimCurrentMatrix(0, sheet.strength_mV_per_ms, duration, chosen))
    tracker = finitewave.ActivationTimeTracker()
    tracker.threshold = sheet.activated_mV
    model.tracker_sequence = finitewave.TrackerSequence()
    model.tracker_sequence.add_tracker(tracker)
    model.initialize()
    return model


def advance(model: finitewave.Courtemanche, until_ms: float):
    """From rest, without compiling again, as its `initialize` would."""
    model.t, model.step, model.t_max = 0.0, 0, until_ms - model.dt / 2
    model._allocate_state_arrays()
    model.stim_sequence.initialize(model)
    model.tracker_sequence.initialize(model)
    model.run(initialize=False, num_of_threads=1)


if __name__ == "__main__":
    sheet = asked_sheet()
    models = []

    def set_up():
        models.append(prepared(sheet))
        advance(models[0], sheet.warm_up_ms)

    setup = seconds_of(set_up)
    stepping = seconds_of(lambda: advance(models[0], sheet.until_ms))
    seen = models[0].tracker_sequence.sequence[0].output[1:-1, 1:-1].ravel()
    assert models[0].step == sheet.n_steps, f"{models[0].step} steps, not {sheet.n_steps}"
    print_result(sheet, version("finitewave"), setup, stepping, np.where(seen < 0, np.nan, seen))
