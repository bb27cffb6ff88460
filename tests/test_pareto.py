import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import batch_of
from torch import nn
from toy_surfaces import strip

from gfunk import pareto
from gfunk.batch import Batch, pack
from gfunk.checkpoints import save_weights
from gfunk.cli import main
from gfunk.domain import Domain, fibre_tensors, halved, make_domain, rectangle
from gfunk.errors import InputError
from gfunk.experiments import seeded_operator
from gfunk.laplacian import Fem
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.transolver import TransolverConfig
from gfunk.pareto import compared, operators, solver
from gfunk.pareto.frontier import MANY, NOTHING, Comparison, Cost, Method, cheaper_by, frontier
from gfunk.pareto.kept import kept_in
from gfunk.pareto.operators import Contender
from gfunk.pareto.pictures import pareto_picture
from gfunk.pareto.solver import settings
from gfunk.pareto.study import Study, WaveProblem, at_resolution, edge_mm, errors
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import SCHEMES, coupling, diffusivity
from gfunk.recipes import atrium_data
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.recipes.recipe import Variant
from gfunk.recipes.tissue_data import Experiment, FibreSquareProblem, FlatPacing, RectangleProblem
from gfunk.rollout import Direct, FlowMap
from gfunk.runs import RunCard, write_card
from gfunk.simulation import View, viewed_domain
from gfunk.spectrum import lowest_modes
from gfunk.store import read_json

CPU = torch.device("cpu")
SEEDS = (100_000, 100_001)
# Coarse and short, but a wave; the stimulus is wide, as what a mesh sees of a small one is mostly chance.
toy = RectangleProblem(
    pacing=FlatPacing(
        cell="mitchell-schaeffer", edge_mm=0.5, voxel_mm=0.7, base_conductivity=0.2, radius_mm=3.0, first_ms=2.5,
        every_ms=0.5, n_saves=4, report_ms=1.0,
    ),
    shortest_mm=6.0,
    longest_mm=7.0,
)  # fmt: skip
positive = st.floats(1e-3, 1e3)


def contender(network: ArrivalConfig | TransolverConfig, integrator: Direct | FlowMap, n_modes: int) -> Contender:
    view = View(discretisation=Fem(), n_modes=n_modes)
    variant = Variant(name="toy", network=network, view=view, integrator=integrator, training=None)
    return Contender(name="toy", operator=seeded_operator(variant), variant=variant, problem=toy)


def arriving() -> Contender:
    return contender(ArrivalConfig(width=8, n_layers=1, n_modes=6), Direct(), 6)


def stepping() -> Contender:
    network = TransolverConfig(width=8, n_layers=1, n_heads=2, n_slices=2, length_scale=5.0, time_scale=4.0)
    return contender(network, FlowMap(longest_step=1.0), 1)


class Still(nn.Module):
    """Nothing ever changes."""

    def forward(self, u: torch.Tensor, batch: object, tau: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(u)


class Watching(Still):
    """Remembers what it was given to see."""

    seen: Batch

    def forward(self, u: torch.Tensor, batch: Batch, tau: torch.Tensor) -> torch.Tensor:
        self.seen = batch
        return super().forward(u, batch, tau)


def still() -> Contender:
    return replace(stepping(), operator=Still())


def try_little(patch: pytest.MonkeyPatch):
    patch.setenv("GFUNK_COMPILE", "0")
    patch.setattr(solver, "FLAT_FACTORS", (0.4, 1.0))
    patch.setattr(solver, "STEPS", (1, 4))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        try_little(patch)
        return compared(toy, SEEDS, [arriving(), stepping(), still()], device=CPU, refine=2, together=2)


def solver_row(comparison: Comparison, factor: float, dt_ms: float, how: str = "accurate") -> Method:
    start = f"solver, {edge_mm(toy) / factor:.3g} mm, {dt_ms:.3g} ms, {how}"
    [row] = [each for each in comparison.methods if each.name.startswith(start)]
    return row


# Ratios.


def test_between_two_settings_the_solver_costs_what_the_power_law_through_them_says():
    # error = 1 / cost
    curve = [(1.0, 1.0), (0.1, 10.0), (0.01, 100.0)]
    assert cheaper_by(0.03, 2.0, curve).times == pytest.approx(1 / 0.03 / 2)
    assert cheaper_by(0.1, 5.0, curve).times == pytest.approx(2)
    assert cheaper_by(0.1, 5.0, curve).bound == ""


@given(power=st.floats(0.2, 4), cost=positive, place=st.floats(0.01, 0.99))
def test_on_any_power_law_the_ratio_is_exact(power: float, cost: float, place: float):
    curve = [(each**-power, each) for each in (1.0, 3.0, 20.0)]
    ratio = cheaper_by(20.0 ** (-power * place), cost, curve)
    assert ratio.times == pytest.approx(20.0**place / cost) and ratio.bound == ""


def test_beyond_the_settings_tried_the_ratio_is_a_bound_and_says_so():
    curve = [(0.5, 1.0), (0.1, 10.0)]
    worse, better = cheaper_by(0.6, 2.0, curve), cheaper_by(0.05, 2.0, curve)
    # The solver does better for 1; and what it takes to do as well is more than 10.
    assert (worse.times, worse.bound, str(worse)) == (0.5, "at most", "at most 0.5")
    assert (better.times, better.bound, str(better)) == (5.0, "at least", "at least 5")


@given(points=st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_no_setting_on_the_frontier_is_beaten_and_every_other_is(points: list[tuple[float, float]]):
    best = frontier(points)

    def is_beaten(point: tuple[float, float]) -> bool:
        return any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)

    assert not any(map(is_beaten, best))
    assert all(point in best or is_beaten(point) for point in points)


def test_a_setting_that_blew_up_is_no_rival():
    assert cheaper_by(0.1, 1.0, [(float("nan"), 0.01), (0.1, 3.0)]).times == pytest.approx(3)
    with pytest.raises(InputError, match="no setting of the solver gave a wave"):
        cheaper_by(0.1, 1.0, [(float("nan"), 0.01)])


# Errors.


def test_the_truth_compared_with_itself_has_no_error():
    waves = [np.random.default_rng(seed).uniform(size=(2, 9, 30)) for seed in range(2)]
    assert errors(waves, waves, np.arange(9.0), 4, 0.5) == {"rel_l2": 0.0, "lat_error_ms": 0.0}


def test_errors_are_those_of_a_late_wave_at_the_reported_times():
    times, arrivals = np.arange(21.0), np.linspace(2.3, 11.8, 40)

    def wave(late_ms: float) -> np.ndarray:
        # Straight lines, so that nothing is lost between saves.
        return np.clip((times[:, None] - arrivals - late_ms) / 20 + 0.5, 0, 1)[None]

    found = errors([wave(1.5)], [wave(0.0)], times, 5, 0.5)
    later = slice(5, None, 5)
    off = np.linalg.norm((wave(1.5) - wave(0))[:, later]) / np.linalg.norm(wave(0)[:, later])
    assert found["lat_error_ms"] == pytest.approx(1.5) and found["rel_l2"] == pytest.approx(off)


def test_saves_too_far_apart_say_nothing_of_arrivals():
    waves = [np.random.default_rng(0).uniform(size=(1, 3, 5))]
    assert errors(waves, waves, 10 * np.arange(3.0), 1, 0.5)["lat_error_ms"] is None


# Resolutions.


def test_finer_edges_are_as_much_shorter_as_asked_and_an_atriums_only_by_halving():
    assert edge_mm(at_resolution(toy, 2.5)) == pytest.approx(0.2)
    atrium = AtriumProblem()
    assert edge_mm(at_resolution(atrium, 4.0)) == edge_mm(atrium) / 4
    for factor in (3.0, 0.25):
        with pytest.raises(InputError, match="can be halved, not divided"):
            at_resolution(atrium, factor)


@pytest.mark.parametrize("problem", [toy, RectangleProblem(), AtriumProblem(), AtriumProblem(n_halvings=0)])
@pytest.mark.parametrize("refine", [2, 4, 8])
def test_every_setting_is_coarser_than_the_truth_and_the_recipes_own_is_among_them(problem: RectangleProblem, refine: int):
    tried = settings(problem, refine)
    assert max(tried) == refine / 2 and SCHEMES[problem.pacing.scheme] in tried[1.0]
    assert all(edge_mm(at_resolution(problem, factor)) > 0 for factor in tried)
    # What the truth's own error is read off: edge and step twice the truth's.
    assert tried[refine / 2][0] == replace(SCHEMES["balanced"], dt_ms=2 * SCHEMES["balanced"].dt_ms / refine)


# The whole of it.


def test_a_coarser_solver_errs_more_than_a_finer_one(comparison: Comparison):
    coarse, own = solver_row(comparison, 0.4, 0.05), solver_row(comparison, 1.0, 0.05)
    assert coarse.rel_l2 > own.rel_l2 > 0 and coarse.nodes < own.nodes
    assert coarse.lat_error_ms and own.lat_error_ms and coarse.lat_error_ms > own.lat_error_ms
    # Twice as coarse as the truth: of order 2, four times as far from where both lead, so three from the truth.
    assert comparison.truth_rel_l2 == solver_row(comparison, 1.0, 0.05, "balanced").rel_l2 / 3


def test_costs_are_positive_and_add_up(comparison: Comparison):
    for row, each in zip(comparison.table, comparison.methods, strict=True):
        assert row["setup_ms"] > 0 and row["run_ms"] > 0
        assert row["ms_1"] == pytest.approx(row["setup_ms"] + row["start_ms"] + row["run_ms"])
        shared = row["setup_ms"] / MANY + each.start.together_ms + each.run.together_ms
        assert row[f"ms_{MANY}"] == pytest.approx(shared)
        # Only operators need a state to start from.
        assert (row["start_ms"] > 0) == (each.kind == "operator") == (row["cheaper_1"] is not None)


def test_operators_see_the_kept_points_and_steps_between_reported_times_tell_no_arrivals(comparison: Comparison):
    arrives, steps, _ = operators = [each for each in comparison.methods if each.kind == "operator"]
    assert all(each.nodes == round(np.mean([toy.experiment(seed).kept.n_nodes for seed in SEEDS])) for each in operators)
    assert arrives.rel_l2 > 0 and steps.rel_l2 > 0 and steps.lat_error_ms is None
    assert len(comparison.answers()) == len(operators)


def test_an_operator_sees_domains_by_its_own_view(monkeypatch: pytest.MonkeyPatch):
    try_little(monkeypatch)
    # Fibres must bend: where all K is one, it is its own mean.
    problem = FibreSquareProblem(pacing=replace(toy.pacing, n_saves=2), side_mm=4.2)
    watching, view = Watching(), View(discretisation=Fem(), n_modes=6, homogenises=True)
    variant = replace(stepping().variant, view=view)
    compared(
        problem,
        SEEDS[:1],
        [Contender(name="toy", operator=watching, variant=variant, problem=problem)],
        device=CPU,
        refine=2,
    )
    kept = problem.experiment(SEEDS[0]).kept
    for homogenises in (True, False):
        domain, matrices = viewed_domain(kept, replace(view, homogenises=homogenises))
        expected = pack([(domain, matrices, lowest_modes(matrices, view.n_modes))])
        for name in ("fibres", "couplings", "eigenvalues"):
            seen = torch.allclose(getattr(watching.seen, name), getattr(expected, name), rtol=1e-4)
            assert seen == homogenises, name


def test_an_operator_that_keeps_the_first_state_errs_by_how_much_the_wave_moves(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
):
    try_little(monkeypatch)
    expected = []
    for seed in SEEDS:
        # The recipe's own data stand in for the truth, from which they differ by far less.
        scaled = (toy.sample(seed).values - toy.offset) / toy.scale
        start, later = scaled[:, :1], scaled[:, 2::2]
        expected.append(np.linalg.norm(later - start) / np.linalg.norm(later))
    assert comparison.methods[-1].rel_l2 == pytest.approx(np.mean(expected), rel=0.1)


def test_killed_and_called_again_only_what_is_missing_is_measured(
    tmp_path: Path, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
):
    try_little(monkeypatch)
    measured: list[str] = []

    def noting(study: Study, name: str, *how: Any) -> Method:
        measured.append(name)
        return solver.solver_method(study, name, *how)

    def killed(part: str):
        if len(measured) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(pareto, "solver_method", noting)
    contenders, how = [stepping(), still()], {"device": CPU, "refine": 2, "together": 2}
    with pytest.raises(KeyboardInterrupt):
        compared(toy, SEEDS, contenders, **how, kept=kept_in(tmp_path, seeds=[*SEEDS]), on_part=killed)
    found = compared(toy, SEEDS, contenders, **how, kept=kept_in(tmp_path, seeds=[*SEEDS]))
    solved = [each.name for each in comparison.methods if each.kind == "solver"]
    assert measured == solved
    # In the folder two operators of one name are told apart by their weights.
    again = compared(toy, SEEDS, contenders, **how, kept=kept_in(tmp_path, seeds=[*SEEDS]))
    assert again == found and measured == solved
    errs = {each.name: each.rel_l2 for each in comparison.methods if each.kind == "solver"}
    assert {each.name: each.rel_l2 for each in found.methods if each.kind == "solver"} == pytest.approx(errs, rel=1e-12)
    assert found.methods[-1].rel_l2 == pytest.approx(comparison.methods[-1].rel_l2) != found.methods[-2].rel_l2
    monkeypatch.setattr(pareto, "solver_method", lambda *_: pytest.fail("all is there"))
    compared(toy, SEEDS, [still()], **how, kept=kept_in(tmp_path, seeds=[*SEEDS]))
    with pytest.raises(InputError, match=r"begun with other seeds \(\[100000, 100001\], not \[1\]\)"):
        kept_in(tmp_path, seeds=[1])
    first = next(tmp_path.glob("solver*.json"))
    first.write_text("{}")
    with pytest.raises(InputError, match="delete it, and it is measured again"):
        compared(toy, SEEDS, [still()], **how, kept=kept_in(tmp_path, seeds=[*SEEDS]))


def test_what_a_solver_costs_is_shared_by_the_trajectories_of_a_domain():
    cost = Cost(setup_ms=50.0, alone_ms=7.0, together_ms=3.0)
    assert cost.ms(1) == 57 and cost.ms(MANY) == 50 / MANY + 3


def test_a_picture_shows_error_against_cost(tmp_path: Path, comparison: Comparison):
    pareto_picture(tmp_path / "below" / "pareto.png", comparison, "toy")
    assert (tmp_path / "below" / "pareto.png").stat().st_size > 10_000


def test_operators_on_grids_and_a_truth_no_finer_than_the_data_are_refused():
    gridded = arriving()
    gridded = replace(gridded, variant=replace(gridded.variant, view=replace(gridded.variant.view, grid_side=8)))
    with pytest.raises(InputError, match="toy sees waves on a grid"):
        compared(toy, [100_000], [gridded], device=CPU)
    with pytest.raises(InputError, match="at least twice as fine"):
        compared(toy, [100_000], device=CPU, refine=1)
    with pytest.raises(InputError, match="no save is late enough"):
        compared(replace(toy, pacing=replace(toy.pacing, report_ms=20.0)), [100_000], device=CPU)


def test_a_comparison_of_one_method_has_no_ratio_for_the_solver():
    row = Method(
        name="solver", kind="solver", nodes=1, parameters=None, rel_l2=0.1, lat_error_ms=None, start=NOTHING,
        run=Cost(setup_ms=1.0, alone_ms=1.0, together_ms=1.0),
    )  # fmt: skip
    found = Comparison(methods=(row,), truth_rel_l2=0.01)
    assert found.ratio(row, 1) is None and found.answers() == []


def test_the_command_compares_runs_of_the_recipe_alone_and_records_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    try_little(monkeypatch)
    each = arriving()
    write_card(
        tmp_path / "ours",
        RunCard(recipe="rectangles", problem=toy, variant=each.variant, data_fingerprint="f00", commit="c0ffee"),
    )
    save_weights(tmp_path / "ours" / "best.safetensors", each.operator, {})
    changes = {name: getattr(toy.pacing, name) for name in vars(toy.pacing) if name not in ("scheme", "at_nodes")}
    words = [f"--set=pacing.{name}={value}" for name, value in changes.items()]
    words += ["--set=shortest_mm=6.0", "--set=longest_mm=7.0", "--run", str(tmp_path / "ours"), "--device", "cpu"]
    record, picture = tmp_path / "pareto.json", tmp_path / "pareto.png"
    files = ["--record", str(record), "--picture", str(picture), "--out", str(tmp_path / "kept")]
    assert main(["bench", "pareto", "rectangles", "--n", "1", "--truth-refine", "2", *words, *files, "--json"]) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert said["seeds"] == [100_000] and said["rows"][-1]["name"] == str(tmp_path / "ours") and said["answers"]
    (row,) = read_json(record)
    assert row["label"] == "pareto" and row["recipe"] == "rectangles" and len(row["rows"]) == len(said["rows"])
    assert sum("(the recipe's)" in each["name"] for each in row["rows"]) == 1 and picture.stat().st_size > 10_000
    assert len(list((tmp_path / "kept").glob("*.json"))) == 1 + len(said["rows"])
    asked = ["bench", "pareto", "rectangles", *words, "--out", str(tmp_path / "kept"), "--truth-refine", "2"]
    assert main([*asked, "--n", "2"]) == 2
    assert "was begun with other seeds" in capsys.readouterr().err
    assert main(["bench", "pareto", "random-fibres", *words[-4:]]) == 2
    assert "was trained on rectangles, not on random-fibres" in capsys.readouterr().err
    assert main(["bench", "pareto", "heat"]) == 2
    assert "bench pareto is for waves" in capsys.readouterr().err
    assert main(["bench", "heat", "rectangles"]) == 2
    assert "only `bench pareto` is of a recipe" in capsys.readouterr().err


def on_a_strip() -> tuple[WaveProblem, Experiment]:
    problem, tissue = AtriumProblem(pacing=AtrialPacing(scheme="paper"), n_halvings=0), strip()
    return problem, started_at(300, problem, tissue, kept=tissue)


def on_a_sheet() -> tuple[WaveProblem, Experiment]:
    """What is kept of it is too coarse to solve anything on."""
    problem, sheet = RectangleProblem(pacing=FlatPacing(scheme="paper")), rectangle(24.0, 4.0, 0.5)
    along_x = np.tile([1.0, 0.0], (sheet.n_nodes, 1))
    tensors = fibre_tensors(along_x, diffusivity(0.3125), diffusivity(0.0625))
    tissue = make_domain(sheet.points, sheet.cells, tensors)
    return problem, started_at(20, problem, tissue, kept=rectangle(24.0, 4.0, 4.0))


def started_at(node: int, problem: WaveProblem, tissue: Domain, kept: Domain) -> Experiment:
    pacing = problem.pacing
    return Experiment(
        seed=0, tissue=tissue, coupling=coupling(tissue, pacing.scheme), kept=kept, nearest=np.arange(kept.n_nodes),
        stimuli=(pacing.stimulus((*tissue.points[node].tolist(),)),),
    )  # fmt: skip


@pytest.mark.parametrize("tissue", [on_a_strip, on_a_sheet])
@pytest.mark.parametrize("started", [operators._patched_start, operators._start_cut_out], ids=["CPU", "GPU"])
def test_operators_start_from_what_the_solver_finds_near_the_stimulus(
    started: Any, tissue: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    (problem, experiment), found = tissue(), []
    pacing, whole = problem.pacing, experiment.tissue
    monkeypatch.setattr(operators, "median_seconds", lambda action, _device: found.append(action()) or 0.5)
    study = Study(problem=problem, experiments=[experiment], device=CPU, together=2)
    on = operators._begun_on(study, problem, experiment, batch_of(experiment.kept, n_modes=1, dtype=torch.float32))
    assert (on.seconds > 0) == (whole is not experiment.kept)
    cost = started(study, pacing, experiment, on)
    assert cost.setup_ms > 1e3 * on.seconds and cost.alone_ms == 500 and cost.together_ms == 250
    [paced] = simulate_many(
        [whole], [[[*experiment.stimuli]]], [pacing.first_ms], cell=pacing.cell, scheme=pacing.scheme,
        couplings=[experiment.coupling], compiles=False,
    )  # fmt: skip
    assert [len(waves) for waves in found] == [1, 2]
    for wave in (wave for waves in found for wave in waves):
        assert wave.n_stepped < whole.n_nodes
        assert np.abs(wave.values_mV[-1] - paced.values_mV[0, -1]).max() < 0.1


def test_data_made_of_several_waves_are_a_row_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setattr(atrium_data, "left_atrium", lambda *_args, **_settings: strip(20.0, 4.0, 1.0))
    monkeypatch.setattr(solver, "STEPS", (1,))
    pacing = AtrialPacing(cell="mitchell-schaeffer", radius_mm=4.0, every_ms=2.0, n_saves=5)
    problem = AtriumProblem(pacing=pacing, n_halvings=0, n_sites=2, is_converged=True)
    found = compared(problem, [0], device=CPU, refine=4)
    [data] = [each for each in found.methods if "the recipe's data" in each.name]
    # They err less than waves that are part of them, and cost more.
    part, own = (
        next(each for each in found.methods if name in each.name) for name in ("1 mm, 0.05 ms, bal", "(the recipe's)")
    )
    assert data.rel_l2 < min(part.rel_l2, own.rel_l2) / 2 and data.kind == "solver"
    assert data.run.alone_ms > own.run.alone_ms


def test_on_halved_edges_an_operator_is_judged_at_the_recipes_points(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setattr(operators, "median_seconds", lambda *_: 0.5)
    tissue, pacing = strip(20.0, 6.0), AtrialPacing(scheme="paper", cell="mitchell-schaeffer", n_saves=20)
    step, stimulus = coupling(tissue, pacing.scheme), pacing.stimulus((*tissue.points[30].tolist(),))
    experiment = Experiment(
        seed=0, tissue=tissue, coupling=step, stimuli=(stimulus,), kept=tissue, nearest=np.arange(tissue.n_nodes)
    )
    problem, watching = AtriumProblem(pacing=pacing, n_halvings=0), Watching()
    study = Study(problem=problem, experiments=[experiment], device=CPU, together=1)
    entry = Contender(name="toy", operator=watching, variant=stepping().variant, problem=problem, n_halvings=1)
    finer = halved(tissue, 1)
    [paced] = simulate_many(
        [finer], [[[stimulus]]], [pacing.first_ms], cell=pacing.cell, scheme=pacing.scheme, compiles=False
    )
    # What keeps its first state is right beside a truth that stays as it is.
    still = (paced.values_mV[:, :, : tissue.n_nodes] - problem.offset) / problem.scale
    method = operators.operator_method(study, entry, [np.repeat(still, pacing.n_saves + 1, axis=1)])
    assert method.nodes == finer.n_nodes and method.rel_l2 < 1e-3
    assert np.allclose(watching.seen.points[0].numpy(), finer.points, atol=1e-5)
    with pytest.raises(InputError, match="only the edges of atria are halved"):
        compared(toy, SEEDS, [replace(stepping(), n_halvings=1)], device=CPU)
