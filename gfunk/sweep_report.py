"""A sweep for people and their tools: a table of its sites, maps for ParaView and numpy, a picture."""

import csv
from dataclasses import replace
from io import BytesIO, StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import KDTree

from gfunk.atria.anatomy import harmonic_fields
from gfunk.domain import Domain, make_domain
from gfunk.figures import VIEWERS, on_surface, pyplot, view_axes
from gfunk.files.vtk_write import write_vtp
from gfunk.laplacian import fem_laplacian
from gfunk.store import write_bytes
from gfunk.surface import vertex_normals
from gfunk.sweeping import Sweep, edge_graph

MOST_IN_VTP = 20  # maps; more of them are easier to read from the .npz
N_BANDS = 10


def site_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One a site, in their order; None where there is nothing to say."""
    domain = sweep.domain
    region = _region_names(domain)
    rows = []
    for number, (node, last) in enumerate(zip(sweep.nodes.tolist(), sweep.last_nodes.tolist(), strict=True)):
        total, mean = (float(times[number]) for times in (sweep.total_ms, sweep.mean_ms))
        is_reached = isfinite(total)
        x, y, z = sweep.sites[number].tolist()
        last_x, last_y, last_z = domain.points[last].tolist() if is_reached else (None, None, None)
        rows.append({
            "site": number, "node": node, "x_mm": x, "y_mm": y, "z_mm": z, "region": region[node],
            "total_ms": total if is_reached else None, "mean_ms": mean if is_reached else None,
            "share": float(sweep.share[number]), "last_node": last if is_reached else None,
            "last_x_mm": last_x, "last_y_mm": last_y, "last_z_mm": last_z,
            "last_region": region[last] if is_reached else None,
        })  # fmt: skip
    return rows


def write_table(path: Path, sweep: Sweep):
    rows = site_rows(sweep)
    text = StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({name: _rounded(value) for name, value in row.items()} for row in rows)
    write_bytes(path, text.getvalue().encode())


def write_maps(path: Path, sweep: Sweep):
    """`.npz`: everything; `.vtp`: the total time of sites over the surface and, of a few sites, their maps."""
    domain = sweep.domain
    if path.suffix == ".npz":
        buffer = BytesIO()
        np.savez(
            buffer, points_mm=domain.points, cells=domain.cells, sites_mm=sweep.sites, nodes=sweep.nodes,
            activation_ms=sweep.activation_ms, total_ms=sweep.total_ms,
        )  # fmt: skip
        write_bytes(path, buffer.getvalue())
        return
    is_site = np.full(domain.n_nodes, -1, dtype=np.int32)
    is_site[sweep.nodes] = np.arange(len(sweep.nodes))
    earliest, latest = sweep.earliest_first[[0, -1]]
    fields = {
        "total_ms": total_over_surface(sweep).astype(np.float32), "site": is_site,
        "earliest_ms": sweep.activation_ms[earliest], "latest_ms": sweep.activation_ms[latest],
    }  # fmt: skip
    if len(sweep.sites) <= MOST_IN_VTP:
        fields |= {f"activation_{number:02d}_ms": each for number, each in enumerate(sweep.activation_ms)}
    write_vtp(path, domain.points, domain.cells, fields)


def total_over_surface(sweep: Sweep) -> Float[np.ndarray, " node"]:
    """The smoothest field that has each site's total time there; NaN farther from all sites than these are apart."""
    domain = sweep.domain
    is_told = np.isfinite(sweep.total_ms)
    nodes, first = np.unique(sweep.nodes[is_told], return_index=True)
    if not len(nodes):
        return np.full(domain.n_nodes, np.nan)
    totals = sweep.total_ms[is_told][first].astype(np.float64)
    if len(nodes) == 1:
        return np.full(domain.n_nodes, totals[0])
    field = np.full(domain.n_nodes, np.nan)
    field[nodes] = totals
    if len(nodes) < domain.n_nodes:
        plain = fem_laplacian(make_domain(domain.points, domain.cells))
        # Of the Laplacian's square: held at single nodes, the Laplacian's own field would have peaks there.
        bent = plain.stiffness @ diags_array(1 / plain.lumped_mass()) @ plain.stiffness
        (field,) = harmonic_fields(
            replace(plain, stiffness=csr_array(bent)), [np.array([node]) for node in nodes], [totals.tolist()]
        )
    away = dijkstra(edge_graph(domain), directed=False, indices=nodes, min_only=True)
    spacing = KDTree(domain.points[nodes]).query(domain.points[nodes], k=2)[0][:, 1].max()
    # Ways along edges are up to a half longer than straight ones.
    return np.where(away <= 1.5 * spacing, field.clip(totals.min(), totals.max()), np.nan)


def sweep_picture(sweep: Sweep) -> bytes:
    """A PNG: the total time by site, and the waves of the earliest and the latest site; each from the front and the back."""
    plt = pyplot()
    draw = on_surface(sweep.domain)
    earliest, latest = (int(sweep.earliest_first[end]) for end in (0, -1))
    totals = total_over_surface(sweep)
    arrived = sweep.activation_ms[[earliest, latest]]
    panels = [
        ("total activation time, by site", totals, _bands(plt, totals, from_zero=False), np.arange(len(sweep.sites))),
        (f"earliest: {_told(sweep, earliest)}", arrived[0], _bands(plt, arrived), np.array([earliest])),
        (f"latest: {_told(sweep, latest)}", arrived[1], _bands(plt, arrived), np.array([latest])),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 2.2), layout="constrained")
    for axis, (title, values, scale, sites) in zip(axes, panels, strict=True):
        draw(axis, np.ma.masked_invalid(values), scale)
        size = 40 / np.sqrt(len(sites))
        axis.scatter(*_seen(sweep.domain, sweep.nodes[sites]), s=size, c="white", edgecolors="black", linewidths=0.5)
        axis.set_title(title, fontsize=10)
        axis.set_aspect("equal")
        axis.set_axis_off()
        figure.colorbar(scale, ax=axis, label="ms", fraction=0.04)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=110, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def _told(sweep: Sweep, number: int) -> str:
    total, share = float(sweep.total_ms[number]), float(sweep.share[number])
    missing = "" if not np.isnan(sweep.activation_ms[number]).any() else f", {100 * share:.0f} % reached"
    return f"site {number}, {total:.0f} ms{missing}" if isfinite(total) else f"site {number}, no wave"


def _bands(plt: Any, times_ms: np.ndarray, *, from_zero: bool = True) -> Any:
    """Bands of equal, round steps; what has no time is grey."""
    from matplotlib.colors import BoundaryNorm
    from matplotlib.ticker import MaxNLocator

    known = times_ms[np.isfinite(times_ms)]
    low, high = (0.0 if from_zero or not len(known) else float(known.min())), float(known.max(initial=1.0))
    edges = MaxNLocator(N_BANDS).tick_values(low, max(high, low + 1.0))
    colours = plt.get_cmap("cividis_r").with_extremes(bad=(0.85, 0.85, 0.85, 1.0))
    return plt.cm.ScalarMappable(BoundaryNorm(edges, colours.N), colours)


def _seen(domain: Domain, nodes: np.ndarray) -> Float[np.ndarray, "2 _"]:
    """Where `on_surface` draws the nodes that face a viewer."""
    centred = domain.points - domain.points.mean(axis=0)
    reach = 1.05 * np.abs(centred).max()
    normals = vertex_normals(domain.points, domain.cells)[nodes]
    parts = []
    for number, viewer in enumerate(VIEWERS):
        turn = view_axes(np.array(viewer))
        faces = normals @ turn[2] > 0
        parts.append((centred[nodes] @ turn.T)[faces, :2] + [2 * reach * number, 0.0])
    return np.concatenate(parts).T


def _region_names(domain: Domain) -> list[str | None]:
    names: list[str | None] = [None] * domain.n_nodes
    for name, nodes in domain.regions.items():
        for node in nodes.tolist():
            names[node] = name
    return names


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
