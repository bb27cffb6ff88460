from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from laws import assert_order, largest_gap, observed_orders
from problems import (
    batch_of,
    crossed_square,
    moved_square,
    rotated_tensor,
    sliver_mesh,
    sphere,
    turning_square,
    with_diffusion,
)
from torch import Tensor

from gfunk.corners import corners
from gfunk.domain import Domain, make_domain, rectangle, refined
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.eikonal import across, marched, rays_of, swept_across, ways_across
from gfunk.operators.front_solver import solver, swept, with_itself
from gfunk.operators.fronts import (
    LEAST_RISE,
    MOST_BENT,
    NEVER,
    coarseness,
    front_times,
    met_on_the_way,
    slope_weights,
    slopes,
    slowed_front,
)

LATE = 1e4
CONFIG = ArrivalConfig(
    width=8, n_layers=2, n_modes=9, filter_width=8, n_latents=3, profile_width=8, speed=1.5, time_scale=0.1
)
RAYS = replace(CONFIG, ray_times=(0.002, 0.01))
SQUARE = turning_square(0.02)
BATCH = batch_of(SQUARE)
seeds = st.integers(0, 99)
meshes = st.one_of(
    st.builds(turning_square, st.floats(0.02, 0.1), ratio=st.floats(1, 50), seed=seeds),
    st.builds(sliver_mesh, seeds),
    st.just(sphere(2)),
)


def times_from(starts: Float[np.ndarray, " node"], domain: Domain) -> Float[np.ndarray, " node"]:
    return marched(torch.from_numpy(starts)[None, None], batch_of(domain, n_modes=1))[0, 0].numpy()


def only(n_nodes: int, *nodes: int) -> Float[np.ndarray, " node"]:
    """A start at these nodes, now."""
    starts = np.full(n_nodes, LATE)
    starts[list(nodes)] = 0
    return starts


# Fronts across a mesh.


@given(seed=seeds, heading=st.floats(0, 2 * np.pi), ratio=st.floats(1, 50), fibre=st.floats(0, np.pi))
def test_a_plane_front_is_carried_exactly_across_any_triangles(seed: int, heading: float, ratio: float, fibre: float):
    tensor = rotated_tensor(fibre, ratio, 1.0)
    domain = moved_square(0.02, tensor, seed)
    slope = np.array([np.cos(heading), np.sin(heading)])
    slope /= np.sqrt(slope @ tensor @ slope)
    exact = domain.points @ slope
    exact -= exact.min()
    # It is given where it comes in through a side of the square.
    way = tensor @ slope
    comes_in = (((way > 0) & (domain.points == 0)) | ((way < 0) & (domain.points == 1))).any(axis=1)
    assert comes_in.mean() < 0.5
    np.testing.assert_allclose(times_from(np.where(comes_in, exact, LATE), domain), exact, atol=1e-12 * exact.max())


def errors_of_a_circle(radius: float) -> tuple[list[float], list[float]]:
    """The largest error of the distance to the middle of a square, given up to the radius; and sizes of meshes."""
    errors, n_sides = [], (9, 17, 33, 65)
    for n_side in n_sides:
        domain = crossed_square(n_side, np.eye(2))
        distance = np.linalg.norm(domain.points - 0.5, axis=1)
        got = times_from(np.where(distance <= radius, distance, LATE), domain)
        assert (got >= distance - 1e-14).all()
        errors.append((got - distance).max())
    return errors, [1 / (n_side - 1) for n_side in n_sides]


def test_from_a_disc_the_error_falls_with_the_mesh_size():
    assert_order(*errors_of_a_circle(radius=0.2), expected=1, within=0.15)


def test_from_a_point_it_falls_with_the_mesh_size_times_its_logarithm():
    """Around a point fronts are curved more than any mesh can follow, which is a known loss of the first order."""
    errors, sizes = errors_of_a_circle(radius=0)
    assert (np.array(errors) < 0.1 * np.array(sizes) * np.log(1 / np.array(sizes))).all()
    orders = observed_orders(errors, sizes)
    assert orders[0] > 0.4 and (np.diff(orders) > 0).all()


def test_on_a_sphere_a_front_runs_along_great_circles():
    errors = []
    for n_refinements in (2, 3, 4):
        domain = sphere(n_refinements)
        angle = np.arccos(np.clip(domain.points @ domain.points[0], -1, 1))
        gap = np.abs(times_from(np.where(angle < 0.7, angle, LATE), domain) - angle)
        # Not where they all meet again.
        errors.append(gap[angle < 2.5].max())
    assert_order(errors, [1, 1 / 2, 1 / 4], expected=1.2, within=0.2)


@given(seed=seeds, ratio=st.floats(1, 50), angle=st.floats(0, np.pi), factor=st.floats(0.1, 10))
def test_one_anisotropic_diffusion_everywhere_is_the_stretched_domain_without(
    seed: int, ratio: float, angle: float, factor: float
):
    tensor = factor * rotated_tensor(angle, ratio, 1.0)
    values, axes = np.linalg.eigh(tensor)
    domain = moved_square(0.02, tensor, seed)
    stretched = make_domain(domain.points @ (axes / np.sqrt(values)) @ axes.T, domain.cells)
    starts = only(domain.n_nodes, seed % domain.n_nodes)
    np.testing.assert_allclose(times_from(starts, domain), times_from(starts, stretched), rtol=1e-9, atol=1e-9)


@given(domain=meshes, seed=seeds)
def test_times_differ_along_no_edge_by_more_than_its_length(domain: Domain, seed: int):
    """So none is longer than any way along edges."""
    node, found = seed % domain.n_nodes, corners(domain)
    got = times_from(only(domain.n_nodes, node), domain)
    first, second = np.moveaxis(got[np.arange(domain.n_nodes)[:, None, None] + found.steps], 2, 0)
    assert (np.abs(second - first) <= np.sqrt(found.shape[..., 0]) * (1 + 1e-9)).all()
    assert got[node] == 0 and (np.delete(got, node) > 0).all()


@given(seed=seeds, ratio=st.floats(1, 50), angle=st.floats(0, np.pi))
def test_no_front_is_faster_than_the_straight_way(seed: int, ratio: float, angle: float):
    tensor = rotated_tensor(angle, ratio, 1.0)
    domain = moved_square(0.02, tensor, seed)
    node = seed % domain.n_nodes
    apart = domain.points - domain.points[node]
    straight = np.sqrt(np.einsum("ni,ij,nj->n", apart, np.linalg.inv(tensor), apart))
    assert (times_from(only(domain.n_nodes, node), domain) >= straight * (1 - 1e-9)).all()


@settings(max_examples=10)
@given(domain=meshes, seed=seeds)
def test_a_detour_takes_no_less_and_another_start_never_delays(domain: Domain, seed: int):
    a, b = np.random.default_rng(seed).choice(domain.n_nodes, 2, replace=False)
    from_a, from_b = (times_from(only(domain.n_nodes, node), domain) for node in (a, b))
    assert (from_a <= from_a[b] + from_b + 1e-9 * from_a.max()).all()
    assert (times_from(only(domain.n_nodes, a, b), domain) <= np.minimum(from_a, from_b)).all()


@settings(max_examples=5)
@given(seed=seeds)
def test_fronts_side_by_side_are_each_alone_and_padding_is_left_alone(seed: int):
    domains = [turning_square(0.04, seed=seed), turning_square(0.02, seed=seed + 1), turning_square(0.03, seed=seed + 2)]
    together = batch_of(*domains, n_modes=1)
    starts = 3 * torch.rand(2, 3, together.points.shape[1], generator=torch.Generator().manual_seed(seed)).double()
    got = marched(starts, together)
    assert torch.equal(got[:, ~together.is_node], starts[:, ~together.is_node])
    for number, domain in enumerate(domains):
        alone = batch_of(domain, n_modes=1)
        for before, after in zip(starts[:, number, : domain.n_nodes], got[:, number, : domain.n_nodes], strict=True):
            torch.testing.assert_close(marched(before[None, None], alone)[0, 0], after, rtol=0, atol=1e-12)


def test_many_starts_on_one_domain_are_each_alone():
    batch = batch_of(SQUARE, n_modes=1)
    starts = 3 * torch.rand(2, 4, SQUARE.n_nodes, generator=torch.Generator().manual_seed(0)).double()
    got = marched(starts, batch)
    alone = torch.cat([marched(starts[:, number : number + 1], batch) for number in range(4)], dim=1)
    for other in (alone, marched(starts, batch.select(torch.zeros(4, dtype=torch.int64)))):
        torch.testing.assert_close(other, got, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 1000))
def test_a_cpu_and_a_gpu_take_the_same_steps(seed: int):
    # A GPU steps all nodes each time, a CPU those where something has changed.
    domain = turning_square(0.05)
    batch = batch_of(domain, n_modes=1)
    start = 30 * torch.rand(2, 3, domain.n_nodes, generator=torch.Generator().manual_seed(seed), dtype=batch.sides.dtype)
    torch.testing.assert_close(marched(start, batch), swept_across(start, batch, ways_across(batch)), rtol=0, atol=0)


@given(domain=meshes, seed=seeds)
def test_the_soonest_way_across_a_triangle_is_the_least_of_all_ways(domain: Domain, seed: int):
    batch = batch_of(domain, n_modes=1)
    side, offset, height = batch.sides[..., None].unbind(-2)
    # As slant as a front may be, and more.
    rise = (
        2 * (2 * torch.rand(side.shape, generator=torch.Generator().manual_seed(seed), dtype=side.dtype) - 1) * side.sqrt()
    )
    place = torch.linspace(0, 1, 201, dtype=side.dtype)
    least = (1 + place * rise + torch.sqrt(side * (place + offset).square() + height)).amin(-1)
    found = across(torch.ones_like(rise)[None, ..., 0], 1 + rise[None, ..., 0], ways_across(batch))[0]
    longest = (side + side * offset.square() + height).sqrt().amax()
    assert (found <= least + 1e-9).all() and (found >= least - 1e-2 * longest).all()


def test_a_long_way_round_is_gone_to_its_end():
    """Many more sweeps than are done at once: a front through a strip one triangle wide."""
    strip = rectangle(200.0, 1.0, 1.0)
    got = times_from(np.where(strip.points[:, 0] == 0, 0, LATE), strip)
    np.testing.assert_allclose(got, strip.points[:, 0], rtol=1e-12)


def test_in_single_precision_places_not_yet_reached_leave_no_trace_in_the_times():
    domain = turning_square(0.002)
    starts = torch.from_numpy(only(domain.n_nodes, 7))[None, None]
    exact, single = (
        marched(starts.to(dtype), batch_of(domain, n_modes=1, dtype=dtype)) for dtype in (torch.float64, torch.float32)
    )
    assert largest_gap(single.double(), exact) < 1e-5


# When the front of a state arrives.


def state_of_a_foot(exact: Float[np.ndarray, " node"], config: ArrivalConfig) -> Tensor:
    """u of a wave that arrives at these times: ahead of it, the exponential that travels with it."""
    risen = torch.from_numpy(np.exp(-(config.speed**2) * np.maximum(exact, 0)))
    return (config.resting + (config.threshold - config.resting) * risen)[None, :, None]


def wave_on(domain: Domain, node: int = 0) -> Tensor:
    """A state with a wave around a node, its foot ahead of it."""
    distance = np.linalg.norm(domain.points - domain.points[node], axis=1)
    return state_of_a_foot((distance - 0.3) / CONFIG.speed, CONFIG)


@given(seed=seeds, ratio=st.floats(1, 2), speed=st.floats(8, 15), here=st.floats(0.2, 0.3))
def test_the_foot_of_a_travelling_wave_says_exactly_when_it_will_arrive(seed: int, ratio: float, speed: float, here: float):
    domain = moved_square(0.005, np.diag([ratio, 1.0]), seed)
    config = replace(CONFIG, speed=speed)
    exact = (domain.points[:, 0] - here) / (speed * np.sqrt(ratio))
    was_here = exact <= 0
    # Only part of the foot is high enough to be read: from there the front is carried on.
    is_read = exact < -np.log(LEAST_RISE) / speed**2
    assert (is_read & ~was_here).any() and (~is_read).any()
    u = state_of_a_foot(exact, config)
    ahead, behind = (each[0, :, 0].numpy() for each in front_times(u, batch_of(domain, n_modes=1), config))
    np.testing.assert_allclose(ahead, np.maximum(exact, 0), rtol=1e-6, atol=1e-12)
    # How long ago it came is known to an edge.
    assert (behind[~was_here] == 0).all()
    late = (behind + exact)[was_here]
    assert late.min() >= 0 and late.max() <= np.sqrt(corners(domain).shape[..., 0].max()) / speed


@settings(max_examples=10)
@given(domain=meshes)
def test_where_all_is_active_nothing_is_ahead_and_where_all_is_at_rest_nothing_ever_comes(domain: Domain):
    batch, never = batch_of(domain, n_modes=1), NEVER * CONFIG.time_scale
    u = torch.full((1, domain.n_nodes, 1), CONFIG.threshold, dtype=torch.float64)
    ahead, behind = front_times(u, batch, CONFIG)
    assert (ahead == 0).all()
    torch.testing.assert_close(behind, torch.full_like(u, never))
    ahead, behind = front_times(torch.full_like(u, CONFIG.resting), batch, CONFIG)
    torch.testing.assert_close(ahead, torch.full_like(u, never))
    assert (behind == 0).all()


def test_rounding_of_a_resting_state_starts_no_front():
    u = CONFIG.resting + 1e-3 * torch.rand(1, SQUARE.n_nodes, 1, dtype=torch.float64)
    ahead, _ = front_times(u, batch_of(SQUARE, n_modes=1), CONFIG)
    assert (ahead == NEVER * CONFIG.time_scale).all()


# What a front meets on its way.


def met(exact: Float[np.ndarray, " node"], domain: Domain, config: ArrivalConfig) -> Float[np.ndarray, "node feature"]:
    """By a front that will arrive at these times, of which u tells where it arrives at once."""
    ahead = torch.from_numpy(exact)[None, :, None]
    u = torch.where(ahead <= 0, config.threshold, config.resting).double()
    return met_on_the_way(u, ahead, batch_of(domain, n_modes=1), config)[0].numpy()


@given(seed=seeds, fibre=st.floats(0, np.pi))
def test_a_plane_front_meets_fibres_at_one_angle(seed: int, fibre: float):
    domain = moved_square(0.002, np.eye(2), seed)
    domain = replace(domain, fibres=np.tile([np.cos(fibre), np.sin(fibre)], (domain.n_nodes, 1)))
    exact = domain.points[:, 0] / RAYS.speed
    np.testing.assert_allclose(met(exact, domain, RAYS)[:, 0], np.cos(fibre) ** 2 * exact, atol=1e-9)


def test_a_ring_is_slowed_by_one_over_its_radius():
    # Of its speed c it loses 1 / (c r): along a ray log(r) / c^2.
    domain = crossed_square(65, np.eye(2))
    radius = np.linalg.norm(domain.points - 0.5, axis=1)
    curved = met(radius / RAYS.speed, domain, RAYS)[:, 3]
    far = (radius > 0.2) & (radius < 0.35)
    slope, _ = np.polyfit(np.log(radius[far]), RAYS.speed**2 * curved[far], 1)
    assert abs(slope - 1) < 0.05


@given(seed=seeds, slope=st.tuples(st.floats(-2, 2), st.floats(-2, 2)))
def test_slopes_of_what_is_linear_are_exact_and_bulge_nowhere(seed: int, slope: tuple[float, float]):
    domain = moved_square(0.02, np.eye(2), seed)
    batch = batch_of(domain, n_modes=1)
    field = torch.from_numpy(domain.points @ slope)[None, :, None]
    found = slopes(field, batch, slope_weights(batch))
    assert (found - torch.tensor(slope, dtype=torch.float64)).abs().max() < 1e-9
    rays = rays_of(torch.from_numpy(domain.points[:, :1])[None], batch, 1.0)
    assert rays.bulge(field, found, batch).abs().max() < 1e-9


def test_with_its_bulge_a_ring_is_second_order_along_the_sides_it_leaves():
    errors, sizes = [], []
    for n_side in (17, 33, 65):
        domain = crossed_square(n_side, np.eye(2))
        batch, radius = (
            batch_of(domain, n_modes=1),
            torch.from_numpy(np.linalg.norm(domain.points - 0.5, axis=1))[None, :, None],
        )
        rays = rays_of(radius, batch, 1.0)
        left = rays.before(batch.points)
        exact = (left - 0.5).norm(dim=-1, keepdim=True)
        far = (radius[0, :, 0] > 0.15) & (radius[0, :, 0] < 0.4)
        bulge = rays.bulge(radius, slopes(radius, batch, slope_weights(batch)), batch)
        errors.append(float((rays.before(radius) + bulge - exact)[0, far].abs().max()))
        sizes.append(1 / (n_side - 1))
        assert errors[-1] < 0.3 * float((rays.before(radius) - exact)[0, far].abs().max())
    # Of what is linear along them, second.
    assert_order(errors, sizes, expected=3, within=0.5)


@given(seed=seeds, heading=st.floats(0, 2 * np.pi), ratio=st.floats(1, 6))
def test_a_mesh_cut_in_four_is_a_quarter_as_coarse_to_a_plane_front(seed: int, heading: float, ratio: float):
    domain = moved_square(0.02, rotated_tensor(0.4, ratio, 1.0), seed)
    halved = with_diffusion(make_domain(*refined(domain)), rotated_tensor(0.4, ratio, 1.0))
    is_inside = ((domain.points > 0) & (domain.points < 1)).all(axis=1)

    def coarse(domain: Domain) -> Tensor:
        ahead = torch.from_numpy(1 + domain.points @ [np.cos(heading), np.sin(heading)])[None, :, None]
        batch = batch_of(domain, n_modes=1)
        return coarseness(ahead, replace(batch, inertia=batch.mass), RAYS)[0]

    # In the mean, as parts of triangles lie elsewhere than at their corners.
    whole, parts = coarse(domain), coarse(halved)
    torch.testing.assert_close(parts[: domain.n_nodes][is_inside], whole[is_inside] / 4, rtol=1e-9, atol=1e-12)


def test_a_ray_begins_where_u_tells_the_time_with_what_it_meets_there():
    config = replace(RAYS, speed=6.0)
    u = state_of_a_foot((np.linalg.norm(SQUARE.points, axis=1) - 0.3) / config.speed, config)
    ahead, _ = front_times(u, BATCH, config)
    risen = (u - config.resting) / (config.threshold - config.resting)
    got = met_on_the_way(u, ahead, BATCH, config)
    summed, begun, met_by_then, there = got.split([RAYS.n_met, 1, RAYS.n_met, RAYS.n_met], dim=-1)
    begins = ((risen > LEAST_RISE) & (ahead > 0))[..., 0]
    assert begins.any()
    torch.testing.assert_close(begun[begins], ahead[begins])
    torch.testing.assert_close(torch.tanh(summed / ahead)[begins], there[begins])
    torch.testing.assert_close(met_by_then[begins], summed[begins])
    later = (ahead[..., 0] > 0) & ~begins
    assert later.any()
    # Carried on as it was, so between the least and the most that any ray began with.
    low, high = begun[begins].aminmax()
    assert (begun[later] > low - 1e-12).all() and (begun[later] < high + 1e-12).all()


def slowed(told: Float[np.ndarray, " node"], domain: Domain, speed: float) -> tuple[np.ndarray, np.ndarray]:
    """When fronts arrive that are told of as in `times_from`: at their one speed, and slowed by their curvature."""
    config = replace(RAYS, speed=speed, time_scale=1e-4)
    u = np.where(told < LATE, config.threshold, config.resting)[None, :, None]
    ahead = torch.from_numpy(times_from(told, domain) / speed)[None, :, None]
    found = slowed_front(torch.from_numpy(u), ahead, batch_of(domain, n_modes=1), config)
    return ahead[0, :, 0].numpy(), found[0, :, 0].numpy()


def test_a_plane_front_is_not_slowed_but_hastened_towards_the_edge_where_it_ends():
    domain, speed = moved_square(0.002, np.eye(2), seed=0), 30.0
    ahead, found = slowed(np.where(domain.points[:, 0] == 0, 0, LATE), domain, speed)
    x = domain.points[:, 0]
    np.testing.assert_allclose(found[x < 0.6], ahead[x < 0.6], atol=0.02 * ahead.max())
    assert (found[x == 1] < ahead[x == 1]).all()


def test_a_ring_that_grows_is_late_by_the_logarithm_of_how_much_it_grew():
    domain, speed = crossed_square(65, np.eye(2)), 40.0
    radius = np.linalg.norm(domain.points - 0.5, axis=1)
    _, found = slowed(np.where(radius <= 0.15, 0, LATE), domain, speed)
    far = (radius > 0.2) & (radius < 0.4)
    slope, _ = np.polyfit(np.log(radius[far]), speed**2 * (found - radius / speed)[far], 1)
    assert abs(slope - 1) < 0.07, slope


@settings(max_examples=30)
@given(domain=meshes, seed=seeds, speed=st.floats(1, 30))
def test_on_any_triangles_a_slowed_front_arrives_not_before_where_u_tells_it_and_never_goes_mad(
    domain: Domain, seed: int, speed: float
):
    config, batch = replace(RAYS, speed=speed), batch_of(domain, n_modes=1)
    centre = domain.points[np.random.default_rng(seed).integers(domain.n_nodes)]
    u = torch.from_numpy(np.exp(-((domain.points - centre) ** 2).sum(axis=1) / 0.02))[None, :, None]
    ahead, _ = front_times(u, batch, config)
    found = slowed_front(u, ahead, batch, config)
    is_told = (u - config.resting) / (config.threshold - config.resting) > LEAST_RISE
    torch.testing.assert_close(found[is_told], ahead[is_told], rtol=0, atol=0)
    assert ((found > 0) == (ahead > 0)).all() and (found <= MOST_BENT * ahead).all()
    assert met_on_the_way(u, found, batch, config).isfinite().all()


@settings(max_examples=10)
@given(seed=seeds, ratio=st.floats(1, 20))
def test_sweeps_come_to_what_factors_give_also_among_couplings_that_push(seed: int, ratio: float):
    domain, config = turning_square(0.002, ratio, seed), replace(RAYS, speed=30.0)
    batch = batch_of(domain, n_modes=1)
    assert ratio < 10 or (batch.couplings < 0).any()
    rng = np.random.default_rng(seed)
    u = torch.exp(-(batch.points - torch.from_numpy(rng.uniform(0, 1, 2))).square().sum(-1, keepdim=True) / 0.01)
    ahead, _ = front_times(u, batch, config)

    def found() -> tuple[Tensor, Tensor]:
        front = slowed_front(u, ahead, batch, config)
        return front, met_on_the_way(u, front, batch, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gfunk.operators.fronts.SLOWED_ACCURACY", 1e-12)
        patch.setattr("gfunk.operators.fronts.MET_ACCURACY", 1e-12)
        factors = found()
        for module in ("eikonal", "fronts"):
            patch.setattr(f"gfunk.operators.{module}.solver", lambda *_, **__: swept)
        sweeps = found()
    for one, other in zip(factors, sweeps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * float(other.abs().max()))


@given(seed=seeds)
def test_factors_of_other_rows_lead_to_the_same_fields(seed: int):
    random, n_nodes = torch.Generator().manual_seed(seed), 100
    ahead, right = torch.rand(2, 1, n_nodes, 1, generator=random, dtype=torch.float64)
    solve = solver(ahead, bends=True)
    # From rows that are all diagonal to others to which that is of no help.
    for share in (0.0, 0.1, 0.9, 0.999):
        places = with_itself(torch.randperm(n_nodes, generator=random)[None, :, None])
        rows = torch.tensor([1, -share], dtype=torch.float64).expand(places.shape)
        found = solve(places, rows, right, torch.zeros_like(right), 1e-6)
        sums = (rows * found[0, places, 0]).sum(-1, keepdim=True)
        torch.testing.assert_close(sums, right, rtol=0, atol=1e-6)


def test_nothing_is_met_where_the_front_was_at_first_or_never_comes():
    u = wave_on(SQUARE)
    ahead, _ = front_times(u, BATCH, RAYS)
    got = met_on_the_way(u, ahead, BATCH, RAYS)
    assert got.isfinite().all() and (got[ahead[..., 0] == 0] == 0).all() and (got[ahead[..., 0] > 0.05] != 0).any()
    never = torch.full_like(u, NEVER * RAYS.time_scale)
    assert met_on_the_way(torch.zeros_like(u), never, BATCH, RAYS).abs().max() < 1e-9
