import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_batching
from problems import batch_of, cloud, crossed_square, rotated_tensor, seeded, shaken_box, sliver_mesh, sphere, turning_square

from gfunk.batch import Batch, pack, pack_trajectories
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import FASTEST_ROW, Discretisation, Fem, Knn, PaperGraph, laplacian
from gfunk.operators.gfunk import GFuNKConfig
from gfunk.simulation import Prepared
from gfunk.spectrum import lowest_modes
from gfunk.store import Sample

SMALL, LARGE = turning_square(0.04), turning_square(0.02, seed=1)
WAYS = [Fem(), Fem(mass="consistent"), Knn(n_neighbors=9), PaperGraph(n_neighbors=6)]
ways = st.sampled_from(WAYS)
domains = st.one_of(
    st.builds(turning_square, st.floats(0.01, 0.1), ratio=st.floats(1, 50), seed=st.integers(0, 99)),
    st.builds(shaken_box, st.just(3), st.just(np.diag([9.0, 2.0, 1.0])), seed=st.integers(0, 99)),
    st.just(sphere(1)),
)


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}


def packed_rows_times(batch: Batch, field: torch.Tensor) -> torch.Tensor:
    """S u from the packed rows of the first domain."""
    difference = field[:, None] - field[batch.neighbors[0]]
    return (batch.couplings[0] * difference).sum(1)


@given(domain=domains, how=ways, seed=st.integers(0, 99))
def test_packed_rows_times_a_field_are_the_stiffness_matrix_times_it(domain: Domain, how: Discretisation, seed: int):
    stiffness = laplacian(domain, how).stiffness
    field = np.random.default_rng(seed).standard_normal(domain.n_nodes)
    got = packed_rows_times(batch_of(domain, n_modes=2, how=how), torch.from_numpy(field)).numpy()
    assert np.abs(got - stiffness @ field).max() <= 1e-13 * (abs(stiffness) @ np.abs(field)).max()


@given(domain=st.one_of(domains, st.builds(sliver_mesh, st.integers(0, 99))), how=ways)
def test_no_eigenvalue_over_inertia_is_above_the_fastest_rate(domain: Domain, how: Discretisation):
    batch = batch_of(domain, n_modes=1, how=how)
    root = batch.inertia[0].sqrt()
    scaled = laplacian(domain, how).stiffness.toarray() / torch.outer(root, root).numpy()
    assert np.linalg.eigvalsh(scaled)[-1] <= (1 + 1e-9) * batch.fastest_rate


def test_inertia_is_mass_where_cells_are_alike_and_more_only_beside_thin_ones():
    even, thin = batch_of(SMALL, LARGE), batch_of(sliver_mesh(0))
    assert torch.equal(even.inertia, even.mass)
    rates = 2 * thin.couplings.clamp_min(0).sum(-1) / thin.mass
    is_fast = rates > FASTEST_ROW * np.median(rates)
    assert is_fast.any()
    assert torch.equal(thin.inertia > thin.mass, is_fast)


def test_a_mesh_refined_once_is_four_times_as_fast():
    coarse, fine = (batch_of(crossed_square(n, np.diag([5.0, 1.0])), n_modes=1).fastest_rate for n in (9, 17))
    assert fine == pytest.approx(4 * coarse)


@given(domain=domains, how=ways)
def test_analysis_undoes_synthesis(domain: Domain, how: Discretisation):
    batch = batch_of(domain, n_modes=8, how=how)
    identity = torch.eye(8, dtype=torch.float64)
    torch.testing.assert_close(batch.analysis[0].mT @ batch.synthesis[0], identity, rtol=0, atol=1e-9)


def test_padding_nodes_are_zero_and_couple_to_nothing():
    batch = batch_of(SMALL, LARGE)
    size = SMALL.n_nodes
    assert batch.points.shape[1] == LARGE.n_nodes > size
    assert batch.is_node.sum(1).tolist() == [size, LARGE.n_nodes]
    for name in ("points", "fibres", "mass", "inertia", "analysis", "synthesis", "couplings"):
        assert (getattr(batch, name)[0, size:] == 0).all(), name
    assert (batch.neighbors[0, :size] < size).all()


def test_a_packed_domain_is_what_was_packed():
    batch = batch_of(SMALL, LARGE)
    for number, domain in enumerate((SMALL, LARGE)):
        matrices = laplacian(domain)
        modes = lowest_modes(matrices, 9)
        n = domain.n_nodes
        for name, expected in {
            "points": domain.points,
            "fibres": domain.fibres,
            "mass": matrices.lumped_mass(),
            "inertia": matrices.lumped_mass(),  # no cell is thin here
            "synthesis": modes.eigenvectors,
            "analysis": matrices.mass @ modes.eigenvectors,
        }.items():
            assert np.array_equal(getattr(batch, name)[number, :n].numpy(), expected), name
        assert np.array_equal(batch.eigenvalues[number].numpy(), modes.eigenvalues)


def test_a_domain_with_fewer_modes_than_its_neighbour_answers_as_alone():
    config = GFuNKConfig(width=4, n_layers=1, n_modes=9, filter_width=4)

    def with_own_number_of_modes(*parts: Domain) -> Batch:
        matrices = {id(part): laplacian(part) for part in parts}
        n_modes = {id(SMALL): 5, id(LARGE): 9}
        return pack([(p, matrices[id(p)], lowest_modes(matrices[id(p)], n_modes[id(p)])) for p in parts], torch.float64)

    assert_batching(seeded(config), [SMALL, LARGE], with_own_number_of_modes)


def test_selecting_repeats_and_reorders_domains():
    batch = batch_of(SMALL, LARGE)
    chosen = batch.select(torch.tensor([1, 0, 1]))
    assert chosen.n_domains == 3
    assert chosen.fastest_rate == batch.fastest_rate
    for name, before in tensors(batch).items():
        assert torch.equal(getattr(chosen, name), torch.stack([before[1], before[0], before[1]])), name


def test_fewer_modes_are_the_lowest_and_change_nothing_else():
    nine, four = batch_of(SMALL, LARGE, n_modes=9), batch_of(SMALL, LARGE, n_modes=9).with_modes(4)
    assert four.n_modes == 4
    assert four.fastest_rate == nine.fastest_rate
    for name, before in tensors(nine).items():
        is_cut = name in ("eigenvalues", "analysis", "synthesis")
        assert torch.equal(getattr(four, name), before[..., :4] if is_cut else before), name


def test_floats_take_the_asked_precision_and_numbers_of_nodes_stay_whole():
    batch = batch_of(cloud(30, rotated_tensor(0.3, 9.0, 1.0)), n_modes=3, how=Knn(n_neighbors=6), dtype=torch.float32)
    kinds = {name: tensor.dtype for name, tensor in tensors(batch).items()}
    assert [kinds.pop(name) for name in ("is_node", "neighbors", "ends")] == [torch.bool, torch.int64, torch.int64]
    assert set(kinds.values()) == {torch.float32}


def prepared_sample(domain: Domain, seed: int, n_trajectories: int, times: np.ndarray) -> Prepared:
    values = np.random.default_rng(seed).standard_normal((n_trajectories, len(times), domain.n_nodes))
    matrices = laplacian(domain)
    sample = Sample(seed=seed, domain=domain, times=times, values=values)
    return Prepared(sample=sample, laplacian=matrices, spectrum=lowest_modes(matrices, 3))


def test_every_trajectory_of_a_set_lives_on_its_own_domain_in_model_space():
    times = np.array([0.0, 0.1, 0.4])
    prepared = [prepared_sample(SMALL, 7, 2, times), prepared_sample(LARGE, 8, 1, times)]
    data = pack_trajectories(prepared, offset=-80.0, scale=100.0)
    assert data.seeds == (7, 7, 8)
    assert data.times.tolist() == times.tolist()
    batch, values = data.take(torch.tensor([2, 0]))
    assert batch.is_node.sum(1).tolist() == [LARGE.n_nodes, SMALL.n_nodes]
    for number, (each, trajectory) in enumerate([(prepared[1], 0), (prepared[0], 0)]):
        expected = (each.sample.values[trajectory] + 80) / 100
        np.testing.assert_allclose(values[number, :, : expected.shape[1], 0], expected, rtol=1e-6)
        assert (values[number, :, expected.shape[1] :] == 0).all()


def test_a_shared_domain_is_kept_once():
    data = pack_trajectories([prepared_sample(SMALL, 7, 3, np.array([0.0, 1.0]))], offset=0.0, scale=1.0)
    batch, values = data.take(torch.tensor([2, 1]))
    assert batch.n_domains == 1 and values.shape[0] == 2


@pytest.mark.parametrize("times", [[0.0, 0.1, 0.5], [0.0, 0.1]], ids=["others", "fewer"])
def test_samples_saved_at_different_times_are_refused(times: list[float]):
    first = prepared_sample(SMALL, 7, 1, np.array([0.0, 0.1, 0.4]))
    second = prepared_sample(LARGE, 8, 1, np.array(times))
    with pytest.raises(InputError, match="samples 7 and 8 were saved at different times"):
        pack_trajectories([first, second], offset=0.0, scale=1.0)
