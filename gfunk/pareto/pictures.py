"""Error against cost as a picture."""

from pathlib import Path

import numpy as np

from gfunk.figures import pyplot
from gfunk.pareto.frontier import MANY, Comparison, frontier

# Apart for every kind of colour blindness (Okabe and Ito); shapes tell them apart in grey.
_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = "sD^vP*X"


def pareto_picture(path: Path, comparison: Comparison, title: str):
    """Error against milliseconds a trajectory, alone on its domain and one of many; the solver's best settings joined."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12, 5.2), sharey=True, layout="constrained")
    solver = [each for each in comparison.methods if each.kind == "solver"]
    others = [each for each in comparison.methods if each.kind == "operator"]
    for axis, n_trajectories in zip(axes, (1, MANY), strict=True):
        points = [(each.rel_l2, each.ms(n_trajectories)) for each in solver]
        best_errors, best_costs = np.reshape(frontier(points), (-1, 2)).T
        axis.plot(best_costs, best_errors, color="#0072B2", linewidth=1, label="the solver's best")
        for each, (error, cost) in zip(solver, points, strict=True):
            own = each.name.endswith("(the recipe's)")
            axis.scatter(
                cost, error, s=70 if own else 25, marker="o", edgecolors="#0072B2",
                facecolors="#0072B2" if own else "none", label="the recipe's own data" if own else None,
            )  # fmt: skip
        for number, each in enumerate(others):
            colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
            axis.scatter(each.ms(n_trajectories), each.rel_l2, s=60, color=colour, marker=mark, label=each.name)
        axis.set(xscale="log", yscale="log", xlabel="ms a trajectory")
        axis.set_title("one trajectory on a domain" if n_trajectories == 1 else f"each of {n_trajectories} on a domain")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("relative l2 against the fine solution")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
