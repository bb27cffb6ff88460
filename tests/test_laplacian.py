from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import robust_laplacian
import skfem
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_is_laplacian, assert_order, assert_same_laplacian, assert_same_matrix
from problems import (
    SmoothField,
    anisotropic_square,
    box,
    bump,
    cloud,
    cosines,
    effective_anisotropy,
    moved_square,
    random_rotation,
    rayleigh_quotient,
    relabelled,
    rotated_tensor,
    shaken_box,
    sphere,
    turned,
    turning_square,
    with_diffusion,
)
from skfem.helpers import grad

from gfunk.domain import Domain, cell_sizes, make_domain
from gfunk.errors import InputError
from gfunk.laplacian import (
    Fem,
    Knn,
    Laplacian,
    PaperGraph,
    _neighbors_in_metric,
    edge_weights,
    fem_laplacian,
    knn_laplacian,
    laplacian,
    nearest_neighbors,
    paper_laplacian,
)
from gfunk.sparse_solver import symmetric_solver
from gfunk.spectrum import lowest_modes

seeds = st.integers(0, 2**32 - 1)
skew_tensor = np.array([[3.0, 0.5, 0.2], [0.5, 2.0, -0.3], [0.2, -0.3, 1.0]])
domains = {
    "plane": turning_square(0.02),
    "surface": with_diffusion(sphere(1), skew_tensor),
    "tetrahedra": shaken_box(4, skew_tensor),
    "cloud": cloud(120, rotated_tensor(0.4, 9.0, 1.0)),
    "cloud in space": cloud(120, skew_tensor),
}
meshes = {name: domain for name, domain in domains.items() if domain.has_cells}
MASSES = ("lumped", "consistent", "mixed", "balanced")
methods = {
    **{f"fem, {mass}, {name}": (meshes[name], Fem(mass=mass)) for name in meshes for mass in MASSES},
    **{f"{type(how).__name__}, {name}": (domains[name], how) for name in domains for how in (Knn(), PaperGraph())},
}
each_method = pytest.mark.parametrize(("domain", "how"), methods.values(), ids=methods.keys())


@each_method
def test_stiffness_is_symmetric_positive_and_kills_constants(domain: Domain, how: Fem | Knn | PaperGraph):
    assert_is_laplacian(laplacian(domain, how))


@each_method
def test_scaling_diffusion_scales_what_the_laplacian_does(domain: Domain, how: Fem | Knn | PaperGraph):
    before, after = laplacian(domain, how), laplacian(replace(domain, diffusion=7.0 * domain.diffusion), how)
    assert_same_laplacian(after, Laplacian(stiffness=7.0 * before.stiffness, mass=before.mass), 1e-12)


@pytest.mark.parametrize("how", [Fem(), Knn(), PaperGraph()], ids=["fem", "knn", "paper"])
@given(seed=seeds, name=st.sampled_from(sorted(domains)))
def test_turning_points_and_diffusion_together_changes_nothing(how: Fem | Knn | PaperGraph, seed: int, name: str):
    domain = domains[name] if domains[name].has_cells or how != Fem() else meshes["plane"]
    # On the sphere many neighbours are equally far, and rounding picks among them.
    domain = domains["cloud in space"] if name == "surface" and how != Fem() else domain
    after = turned(domain, random_rotation(domain.points.shape[1], seed))
    assert_same_laplacian(laplacian(after, how), laplacian(domain, how), 1e-10)


@pytest.mark.parametrize("how", [Fem(), Knn(), PaperGraph()], ids=["fem", "knn", "paper"])
@given(seed=seeds, name=st.sampled_from(sorted(domains)))
def test_relabelling_nodes_relabels_the_matrices(how: Fem | Knn | PaperGraph, seed: int, name: str):
    domain = domains[name] if domains[name].has_cells or how != Fem() else meshes["plane"]
    domain = domains["cloud in space"] if name == "surface" and how != Fem() else domain
    order = np.random.default_rng(seed).permutation(domain.n_nodes)
    before, after = laplacian(domain, how), laplacian(relabelled(domain, order), how)
    expected = Laplacian(stiffness=before.stiffness[order][:, order], mass=before.mass[order][:, order])
    assert_same_laplacian(after, expected, 1e-12)


@pytest.mark.parametrize(
    ("domain", "mesh", "element", "constant"),
    [
        (meshes["plane"], skfem.MeshTri, skfem.ElementTriP1(), skfem.ElementTriP0()),
        (meshes["tetrahedra"], skfem.MeshTet, skfem.ElementTetP1(), skfem.ElementTetP0()),
    ],
    ids=["triangles", "tetrahedra"],
)
def test_finite_elements_agree_with_scikit_fem(domain: Domain, mesh: type, element: skfem.Element, constant: skfem.Element):
    rng = np.random.default_rng(0)
    dim = domain.points.shape[1]
    half = rng.normal(size=(len(domain.cells), dim, dim))
    tensors = half @ half.swapaxes(1, 2) + 0.1 * np.eye(dim)
    domain = make_domain(domain.points, domain.cells, tensors, diffusion_at="cell")
    basis = skfem.Basis(mesh(domain.points.T, domain.cells.T, sort_t=False), element)
    per_cell = basis.with_element(constant)
    parts = {f"k{i}{j}": per_cell.interpolate(tensors[:, i, j]) for i in range(dim) for j in range(dim)}

    @skfem.BilinearForm
    def diffusion(u, v, w):
        return sum(w[f"k{i}{j}"] * grad(u)[j] * grad(v)[i] for i in range(dim) for j in range(dim))

    @skfem.BilinearForm
    def product(u, v, _):
        return u * v

    ours = fem_laplacian(domain, "consistent")
    assert_same_matrix(ours.stiffness, diffusion.assemble(basis, **parts), 1e-10)
    assert_same_matrix(ours.mass, product.assemble(basis), 1e-10)


def test_finite_elements_on_a_sphere_agree_with_robust_laplacian():
    # Every triangle of this mesh is Delaunay already, so the intrinsic flips of robust_laplacian leave it as it is.
    domain = sphere(3)
    stiffness, mass = robust_laplacian.mesh_laplacian(domain.points, domain.cells, mollify_factor=0.0)
    ours = fem_laplacian(domain)
    assert_same_matrix(ours.stiffness, stiffness, 1e-10)
    assert_same_matrix(ours.mass, mass, 1e-10)


def solution_errors(domain: Domain, field: SmoothField) -> tuple[float, float]:
    """Of -div(K grad u) + u = f: the error of u in L2 and in energy, all integrals taken at the middles of the sides."""
    tensor, cells = domain.diffusion[0], domain.cells
    matrices = fem_laplacian(domain, "consistent")
    corners, size = domain.points[cells], cell_sizes(domain.points, cells)
    sides = [(0, 1), (1, 2), (2, 0)]
    middles = [(corners[:, a] + corners[:, b]) / 2 for a, b in sides]
    load = np.zeros(domain.n_nodes)
    for side, middle in zip(sides, middles, strict=True):
        source = field.value(middle) - np.einsum("ij,cij->c", tensor, field.hessian(middle))
        np.add.at(load, cells[:, side], (size * source / 6)[:, None])
    found = symmetric_solver(matrices.stiffness + matrices.mass)(load)
    rise = found[cells[:, 1:]] - found[cells[:, :1]]
    slope = np.linalg.solve(corners[:, 1:] - corners[:, :1], rise[..., None])[..., 0]
    square, energy = 0.0, 0.0
    for side, middle in zip(sides, middles, strict=True):
        gap = found[cells[:, side]].mean(axis=1) - field.value(middle)
        slope_gap = slope - field.gradient(middle)
        square += size @ gap**2 / 3
        energy += size @ np.einsum("ci,ij,cj->c", slope_gap, tensor, slope_gap) / 3
    return float(np.sqrt(square)), float(np.sqrt(energy))


@pytest.mark.parametrize(
    ("tensor", "field"),
    [(np.eye(2), cosines), (np.diag([9.0, 1.0]), cosines), (rotated_tensor(0.5, 9.0, 1.0), bump)],
    ids=["isotropic", "9:1", "9:1 rotated"],
)
def test_finite_elements_are_of_order_two_in_the_field_and_one_in_the_energy(tensor: np.ndarray, field: SmoothField):
    cell_areas = np.array([4e-3, 1e-3, 2.5e-4])
    square, energy = zip(*(solution_errors(moved_square(area, tensor), field) for area in cell_areas), strict=True)
    assert_order(square, np.sqrt(cell_areas), 2)
    assert_order(energy, np.sqrt(cell_areas), 1, within=0.1)


about_4500_nodes = 1.9e-4
clouds = {
    "moved grid": lambda tensor: moved_square(about_4500_nodes, tensor),
    "uniform": lambda tensor: cloud(4500, tensor),
    "graded": lambda tensor: cloud(4500, tensor, grading=1.5),
}


@pytest.mark.parametrize("ratio", [9.0, 5.0])
def test_finite_elements_see_the_true_anisotropy(ratio: float):
    domain = moved_square(about_4500_nodes, np.diag([ratio, 1.0]))
    assert abs(effective_anisotropy(domain, fem_laplacian(domain)) / ratio - 1) < 0.05


@pytest.mark.parametrize("ratio", [9.0, 5.0])
@pytest.mark.parametrize("points", clouds.values(), ids=clouds.keys())
def test_the_kernel_graph_sees_the_true_anisotropy_and_eigenvalue_at_any_density(points: Callable, ratio: float):
    domain = points(np.diag([ratio, 1.0]))
    graph = knn_laplacian(domain)
    assert abs(effective_anisotropy(domain, graph) / ratio - 1) < 0.1
    assert abs(lowest_modes(graph, 2).eigenvalues[1] / np.pi**2 - 1) < 0.12
    along, across = np.cos(np.pi * domain.points).T
    assert abs(rayleigh_quotient(graph, along) / (ratio * np.pi**2) - 1) < 0.12
    assert abs(rayleigh_quotient(graph, across) / np.pi**2 - 1) < 0.12


@given(seed=seeds, angle=st.floats(0, 3.2), ratio=st.floats(1, 50), grading=st.floats(1, 2))
def test_every_weight_of_the_kernel_graph_is_positive(seed: int, angle: float, ratio: float, grading: float):
    graph = knn_laplacian(cloud(150, rotated_tensor(angle, ratio, 1.0), seed, grading), n_neighbors=10)
    weights = -(graph.stiffness - np.diag(graph.stiffness.diagonal()))
    assert weights.min() >= 0
    assert graph.stiffness.diagonal().min() > 0
    assert graph.mass.diagonal().min() > 0


@pytest.mark.parametrize(("ratio", "lowest", "highest"), [(9.0, 3.1, 3.5), (5.0, 2.2, 2.5)])
def test_the_graph_of_the_paper_sees_about_the_root_of_the_anisotropy(ratio: float, lowest: float, highest: float):
    domain = moved_square(about_4500_nodes, np.diag([ratio, 1.0]))
    assert lowest < effective_anisotropy(domain, paper_laplacian(domain, 30)) < highest


def test_the_graph_of_the_paper_is_its_equation_eight():
    rng = np.random.default_rng(1)
    half = rng.normal(size=(40, 2, 2))
    domain = make_domain(rng.uniform(size=(40, 2)), diffusion=half @ half.swapaxes(1, 2) + 0.1 * np.eye(2))
    gap = np.linalg.norm(domain.points[:, None] - domain.points, axis=2)
    weights = np.zeros((40, 40))
    for i in range(40):
        for j in np.argsort(gap[i])[1:7]:
            step = domain.points[j] - domain.points[i]
            resistance = (np.linalg.inv(domain.diffusion[i]) + np.linalg.inv(domain.diffusion[j])) / 2
            weights[i, j] = weights[j, i] = 1 / (step @ resistance @ step)
    graph = paper_laplacian(domain, 6)
    np.testing.assert_allclose(graph.stiffness.toarray(), np.diag(weights.sum(axis=1)) - weights, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(graph.mass.toarray(), np.eye(40))


@given(seed=seeds, n_nodes=st.integers(3, 80), ratio=st.floats(1, 1000), data=st.data())
def test_neighbours_in_the_metric_are_those_of_brute_force(seed: int, n_nodes: int, ratio: float, data: st.DataObject):
    n_neighbors = data.draw(st.integers(1, n_nodes - 1))
    rng = np.random.default_rng(seed)
    points = rng.uniform(size=(n_nodes, 2))
    angles = rng.uniform(0, np.pi, n_nodes)
    resistance = np.stack([np.linalg.inv(rotated_tensor(angle, ratio, 1.0)) for angle in angles])
    step = points[None] - points[:, None]
    length = np.sqrt(np.einsum("nmi,nij,nmj->nm", step, resistance, step))
    np.fill_diagonal(length, np.inf)
    neighbors, distance = _neighbors_in_metric(points, resistance, n_neighbors)
    np.testing.assert_array_equal(neighbors, np.argsort(length, axis=1)[:, :n_neighbors])
    np.testing.assert_allclose(distance, np.sort(length, axis=1)[:, :n_neighbors], rtol=1e-12)


@given(seed=seeds, n_neighbors=st.integers(1, 20))
def test_no_node_is_its_own_neighbour_even_where_points_coincide(seed: int, n_neighbors: int):
    points = np.random.default_rng(seed).integers(0, 4, size=(30, 2)).astype(float)
    neighbors = nearest_neighbors(points, n_neighbors)
    assert (neighbors != np.arange(30)[:, None]).all()
    assert all(len(set(row)) == n_neighbors for row in neighbors.tolist())


@pytest.mark.parametrize("build", [knn_laplacian, paper_laplacian])
@pytest.mark.parametrize("n_neighbors", [0, 30, 31])
def test_more_neighbours_than_there_are_other_nodes_are_refused(build: Callable, n_neighbors: int):
    with pytest.raises(InputError, match=f"{n_neighbors} neighbours can't be had among 30 nodes: ask for 1 to 29"):
        build(cloud(30, np.eye(2)), n_neighbors)


def test_two_nodes_on_one_point_are_refused_by_number():
    points = cloud(20, np.eye(2)).points
    points[7] = points[3]
    with pytest.raises(InputError, match=r"nodes \[3, 7\] lie on the same point"):
        edge_weights(make_domain(points), np.array([[0, 1], [3, 7]]))


def test_finite_elements_without_cells_are_refused():
    with pytest.raises(InputError, match="finite elements need cells"):
        fem_laplacian(cloud(20, np.eye(2)))


def test_a_mesh_gets_finite_elements_and_a_cloud_the_kernel_graph():
    assert_same_laplacian(laplacian(domains["plane"]), fem_laplacian(domains["plane"]), 0)
    assert_same_laplacian(laplacian(domains["cloud"]), knn_laplacian(domains["cloud"]), 0)


@pytest.mark.parametrize("domain", meshes.values(), ids=meshes.keys())
def test_lumped_and_consistent_mass_both_weigh_the_whole_domain(domain: Domain):
    lumped, consistent = fem_laplacian(domain, "lumped"), fem_laplacian(domain, "consistent")
    total = cell_sizes(domain.points, domain.cells).sum()
    assert abs(lumped.mass.sum() / total - 1) < 1e-12
    assert abs(consistent.mass.sum() / total - 1) < 1e-12
    np.testing.assert_allclose(lumped.lumped_mass(), consistent.lumped_mass(), rtol=1e-12)


def test_the_mass_of_the_kernel_graph_weighs_the_whole_domain():
    assert abs(knn_laplacian(cloud(4000, np.eye(2))).mass.sum() - 1) < 0.1


def test_eigenvalues_of_the_sphere_tend_to_those_of_the_laplace_beltrami_operator():
    spheres = [sphere(n) for n in (2, 3, 4)]
    values = [lowest_modes(fem_laplacian(domain), 16).eigenvalues for domain in spheres]
    exact = np.repeat([0, 2, 6, 12], [1, 3, 5, 7])
    np.testing.assert_allclose(values[-1], exact, rtol=5e-3, atol=1e-9)
    cell_lengths = [domain.n_nodes**-0.5 for domain in spheres]
    for degree in (2, 3):
        assert_order([np.abs(found - exact)[exact == degree * (degree + 1)].max() for found in values], cell_lengths, 2)


def test_the_first_eigenvalue_of_a_box_of_tetrahedra_tends_to_the_square_of_pi():
    n_sides = np.array([5, 9, 13])
    errors = [abs(lowest_modes(fem_laplacian(box(n)), 2).eigenvalues[1] / np.pi**2 - 1) for n in n_sides]
    assert errors[-1] < 0.01
    assert_order(errors, 1 / (n_sides - 1), 2)


def test_finite_elements_with_tensors_per_node_are_of_order_two():
    # d/dx ((1 + x) du/dx): its energy for u = x is the integral of 1 + x, which the mean over corners gives exactly.
    domain = anisotropic_square(9, 1.0)
    domain = replace(domain, diffusion=domain.diffusion * (1 + domain.points[:, 0])[:, None, None])
    x = domain.points[:, 0]
    assert abs(x @ (fem_laplacian(domain).stiffness @ x) - 1.5) < 1e-12
    errors = []
    for n_side in (9, 17, 33):
        domain = anisotropic_square(n_side, 1.0)
        x = domain.points[:, 0]
        domain = replace(domain, diffusion=domain.diffusion * np.exp(x)[:, None, None])
        errors.append(abs(x @ (fem_laplacian(domain).stiffness @ x) - (np.e - 1)))
    assert_order(errors, [1 / 8, 1 / 16, 1 / 32], 2)
