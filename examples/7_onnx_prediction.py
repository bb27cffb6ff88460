"""An exported model beside the solver, on a simulated sample: numpy, onnxruntime and gfunk's geometry; torch is not needed.

    gfunk export heat --out heat.onnx
    gfunk simulate heat --split test --n 1 --out data/heat
    python examples/7_onnx_prediction.py heat.onnx data/heat/test 200000

The same with `rectangles` in place of `heat`: waves, for which the times of their fronts have to be found first.
"""

import json
import sys
from math import ceil
from pathlib import Path

import numpy as np
import onnxruntime

from gfunk import Domain, Fem, Knn, PaperGraph, laplacian, lowest_modes
from gfunk.exporting.fronts import Front, front_inputs
from gfunk.homogenising import homogenised
from gfunk.settings import from_json
from gfunk.store import read_sample


def predicted(model: str, domain: Domain, first: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Values (trajectory, time, node) at the times, of which the first is that of the first values (trajectory, node)."""
    session = onnxruntime.InferenceSession(model)
    about = session.get_modelmeta().custom_metadata_map
    offset, scale = float(about["offset"]), float(about["scale"])
    if json.loads(about["homogenised"]):
        domain = homogenised(domain)
    matrices = laplacian(domain, from_json(json.loads(about["discretisation"]), (Fem, Knn, PaperGraph)))
    modes = lowest_modes(matrices, int(about["n_modes"]))
    known = {"eigenvalues": modes.eigenvalues, "synthesis": modes.eigenvectors}
    known["analysis"] = matrices.mass @ modes.eigenvectors
    known = {name: array.astype(np.float32) for name, array in known.items()}
    u = ((first - offset) / scale).astype(np.float32)
    if "front" in about:
        fronts = front_inputs(u, domain, matrices, Front(**json.loads(about["front"])))
        later = (times[1:] - times[0]).astype(np.float32)
        (found,) = session.run(["values"], known | fronts | {"u": u, "times": later})
        states = np.concatenate([u[:, None], found], axis=1)
    else:
        longest, saved = json.loads(about["integrator"])["longest_step"], [u]
        for duration in np.diff(times):
            n_steps = ceil(duration / longest - 1e-6)
            tau = np.float32(duration / n_steps)
            for _ in range(n_steps):
                (rate,) = session.run(["rate"], known | {"u": u, "tau": np.array(tau)})
                u = u + tau * rate
            saved.append(u)
        states = np.stack(saved, axis=1)
    return offset + scale * states


if __name__ == "__main__":
    model, folder, seed = sys.argv[1:]
    sample = read_sample(Path(folder), int(seed))
    values = predicted(model, sample.domain, sample.values[:, 0], sample.times)
    off, spread = np.abs(values - sample.values).mean(), np.ptp(sample.values)
    print(f"off by {off / spread:.2g} of the range on average, at {values.shape[1]} times and {values.shape[2]} nodes")
