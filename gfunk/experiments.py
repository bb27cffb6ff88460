"""A recipe carried out: its data loaded as a variant sees it, its operator trained and evaluated."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from gfunk.activation import ACTIVE_MV
from gfunk.batch import TrajectorySet, pack_trajectories
from gfunk.batched_modes import batched_modes
from gfunk.checkpoints import check_free
from gfunk.errors import InputError
from gfunk.evaluation import Evaluation, evaluate
from gfunk.operators.fno import FNOConfig
from gfunk.operators.make import make_operator
from gfunk.pretrained import load_pretrained, pretrained_names, read_model_card, read_seen
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.book import RECIPES
from gfunk.recipes.recipe import Recipe, RecipeProblem, Variant
from gfunk.recipes.tissue_data import TissueProblem
from gfunk.rollout import FlowMap
from gfunk.runs import RECORDS, RunCard, load_run, read_bounds, read_card, write_card
from gfunk.settings import from_json, to_json
from gfunk.simulation import Prepared, View, prepare, prepare_fresh, viewed
from gfunk.store import commit, dataset_fingerprint, read_object, sample_seeds, write_json
from gfunk.training import Epoch, Outcome, step_of, train
from gfunk.trust import Trust, seen_in


def chosen_device(name: str) -> torch.device:
    """`auto` takes a CUDA device if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} can't be used here: {str(error).splitlines()[0]}") from error
    return device


def load_split(
    folder: Path, view: View, *, n: int | None, n_workers: int, device: torch.device | None = None,
    on_sample: Callable[[], None] = lambda: None,
) -> TrajectorySet:  # fmt: skip
    """The first n samples (or all) of a simulated split, with their modes.

    Modes are found on the cores and kept beside the split; or, on a GPU, all anew, which takes less time than reading them.
    """
    seeds = sample_seeds(folder)
    if n is not None and n > len(seeds):
        raise InputError(f"{folder}: holds {len(seeds)} samples, {n} were asked for")
    problem = dataset_problem(folder)
    parts = []
    # A grid's samples are not those of the files.
    is_mesh = view.n_modes > 1 and view.grid_side is None
    for part in (
        _prepared_together(folder, seeds[:n], view, n_workers, device)
        if device is not None and device.type == "cuda" and is_mesh
        else prepare(folder, seeds[:n], view, cache=folder.parent / "spectra", n_workers=n_workers)
    ):  # fmt: skip
        parts.append(part)
        on_sample()
    return pack_trajectories(parts, offset=problem.offset, scale=problem.scale, device=device or "cpu")


def _prepared_together(
    folder: Path, seeds: Sequence[int], view: View, n_workers: int, device: torch.device
) -> Iterator[Prepared]:
    samples, matrices = zip(*viewed(folder, seeds, view, n_workers=n_workers), strict=True)
    for sample, each, spectrum in zip(samples, matrices, batched_modes(matrices, view.n_modes, device=device), strict=True):
        yield Prepared(sample=sample, laplacian=each, spectrum=spectrum)


def dataset_problem(folder: Path) -> RecipeProblem:
    """The problem a dataset was simulated from."""
    if not (folder / "dataset.json").exists():
        raise InputError(f"{folder}: no such dataset; make it with `gfunk simulate`")
    problem = from_json(read_object(folder / "dataset.json").get("problem"), RECORDS)
    if not isinstance(problem, RecipeProblem):
        raise InputError(f"{folder}: does not say which problem it holds")
    return problem


def one_a_domain(problem: RecipeProblem) -> RecipeProblem:
    """With one trajectory on each domain, not a hundred: enough to check a model, and soon simulated."""
    return replace(problem, n_sites=1) if isinstance(problem, AtriumProblem) else problem


def check_same_tissue(name: str, learned_from: str, learned: RecipeProblem, recipe: Recipe):
    """Recipes of one kind of tissue differ in what is asked alone: how long, how many sites, how rough."""
    if type(learned) is not type(recipe.problem):
        raise InputError(f"{name} was trained on {learned_from}, not on {recipe.name}")


def simulated_set(
    problem: RecipeProblem, view: View, seeds: Sequence[int], *, n_workers: int = 1,
    on_sample: Callable[[], None] = lambda: None,
) -> TrajectorySet:  # fmt: skip
    """Fresh samples, simulated now and kept nowhere."""
    parts = []
    for part in prepare_fresh(problem, seeds, view, n_workers=n_workers):
        parts.append(part)
        on_sample()
    return pack_trajectories(parts, offset=problem.offset, scale=problem.scale)


def train_variant(
    recipe: Recipe,
    variant: Variant,
    data: Path,
    folder: Path,
    *,
    device: torch.device,
    resume: bool,
    minutes: float | None,
    n_train: int | None,
    n_val: int | None,
    n_workers: int,
    compiles: bool = False,
    replays: bool = True,
    on_sample: Callable[[], None] = lambda: None,
    on_start: Callable[[nn.Module, TrajectorySet], None] = lambda *_: None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    on_iteration: Callable[[], None] = lambda: None,
) -> tuple[nn.Module, Outcome]:
    """Train a variant on `data`/train and `data`/val into the run folder. Resuming demands the same settings and data."""
    if variant.training is None:
        raise InputError(f"variant {variant.name} has nothing to learn; evaluate it right away")
    card = run_card(recipe, variant, data, n_train=n_train, n_val=n_val)
    if resume:
        check_same(read_card(folder), card, folder)
    else:
        check_free(folder)
        write_card(folder, card)
    train_set, val_set = (
        load_split(data / split, variant.view, n=n, n_workers=n_workers, device=device, on_sample=on_sample).to(device)
        for split, n in (("train", n_train), ("val", n_val))
    )
    write_json(folder / "seen.json", to_json(seen_in(train_set)))
    operator = seeded_operator(variant).to(device)
    on_start(operator, train_set)
    outcome = train(
        operator, train_set, val_set, variant.integrator, variant.training, folder,
        resume=resume, minutes=minutes, on_epoch=on_epoch, on_iteration=on_iteration, replays=replays,
        step=step_of(operator, variant.training, compiles),
    )  # fmt: skip
    return operator, outcome


def run_card(recipe: Recipe, variant: Variant, data: Path, *, n_train: int | None, n_val: int | None) -> RunCard:
    """What training the variant on `data`/train and `data`/val will be."""
    check_modes(variant)
    used = {data / "train": n_train, data / "val": n_val}
    fingerprints = [dataset_fingerprint(split, sample_seeds(split)[:n]) for split, n in used.items()]
    return RunCard(
        recipe=recipe.name,
        problem=dataset_problem(data / "train"),
        variant=variant,
        data_fingerprint=" ".join(fingerprints),
        commit=commit(),
    )


def seeded_operator(variant: Variant) -> nn.Module:
    """A new operator whose first weights depend on the training's seed alone, or are those it is to start from."""
    if variant.starts_from:
        operator, _, _, other = operator_named(variant.starts_from)
        if other.network != variant.network:
            raise InputError(
                f"variant {variant.name} can't start from {variant.starts_from}, which is another network: set the same "
                f"network.* for both (NAME@MODES starts with fewer modes), or starts_from= for none"
            )
        return operator.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(variant.training.seed if variant.training else 0)
        return make_operator(variant.network)


def trust_in(name: str) -> Trust:
    """What is known of how far to trust a shipped model or a trained run; with fewer modes errors have no bounds."""
    name, n_modes = with_how_many_modes(name)
    if n_modes is not None:
        seen = trust_in(name).seen
        return Trust(seen=None if seen is None else seen.with_modes(n_modes))
    if is_run(name):
        return Trust(seen=read_seen(Path(name))).with_bounds(read_bounds(Path(name)))
    return read_model_card(name).trust if name in pretrained_names() else Trust()


def with_how_many_modes(name: str) -> tuple[str, int | None]:
    """NAME@MODES taken apart; None where all modes are meant that the operator has learned with."""
    found = re.fullmatch(r"(.+)@(\d+)", name)
    return (name, None) if found is None or is_run_folder(name) else (found[1], int(found[2]))


def operator_named(name: str) -> tuple[nn.Module, str, RecipeProblem, Variant]:
    """A trained run, a shipped model, or a variant with nothing to learn: operator, recipe name, problem, variant.

    NAME@MODES is the same with the lowest of its modes alone: they are found sooner, and errors grow little by little.
    """
    name, n_modes = with_how_many_modes(name)
    operator, recipe_name, problem, variant = _operator_as_learned(name)
    if n_modes is not None:
        operator, variant = with_lowest_modes(operator, variant, n_modes, name)
    return operator, recipe_name, problem, variant


def with_lowest_modes(operator: nn.Module, variant: Variant, n_modes: int, name: str) -> tuple[nn.Module, Variant]:
    """The same weights, where they know modes by their eigenvalues and not by their numbers."""
    most = getattr(variant.network, "n_modes", 0)
    if not 1 <= n_modes <= most:
        raise InputError(f"{name}@{n_modes}: {name} has learned with {most} modes: ask for 1 to {most} of them")
    network = replace(variant.network, n_modes=n_modes)
    fewer = make_operator(network)
    try:
        fewer.load_state_dict(operator.state_dict())
    except RuntimeError:
        raise InputError(f"{name}@{n_modes}: {name} knows its modes by their numbers, and needs all {most}") from None
    return fewer.eval(), replace(variant, network=network, view=replace(variant.view, n_modes=n_modes))


def _operator_as_learned(name: str) -> tuple[nn.Module, str, RecipeProblem, Variant]:
    recipe_name, _, variant_name = name.partition("/")
    if recipe_name in RECIPES and variant_name and not Path(name).exists():
        recipe = RECIPES[recipe_name]
        variant = recipe.variant(variant_name)
        if variant.training is not None:
            raise InputError(f"{name} has to be trained first: `gfunk train {recipe_name} --variant {variant_name} ...`")
        return make_operator(variant.network), recipe.name, recipe.problem, variant
    if name in RECIPES and not is_run(name) and name not in pretrained_names():
        raise InputError(
            f"{name} is a recipe, and no model of that name is shipped; shipped are {', '.join(pretrained_names())}"
        )
    operator, card = load_run(Path(name)) if is_run(name) else load_pretrained(name)
    return operator, card.recipe, card.problem, card.variant


def shipped_for(name: str) -> tuple[str, str | None]:
    """A recipe that no model is named after: the shipped model that predicts it, and the recipe; any other name stays."""
    base, at, n_modes = name.partition("@")
    if base not in RECIPES or not RECIPES[base].shipped or is_run(name):
        return name, None
    return f"{RECIPES[base].shipped}{at}{n_modes}", base


def is_run(name: str) -> bool:
    """A single word is a shipped model, unless a run of that name lies here."""
    return is_run_folder(name) or len(Path(name).parts) != 1


def is_run_folder(name: str) -> bool:
    return (Path(name) / "run.json").exists()


def evaluate_reported(operator: nn.Module, variant: Variant, problem: RecipeProblem, data: TrajectorySet) -> Evaluation:
    """Errors at the times the problem reports, as `gfunk evaluate` takes them by itself."""
    data, every = reported(variant, problem, data)
    return evaluate(operator.eval(), data, variant.integrator, every=every, threshold=active_from(problem))


def reported(variant: Variant, problem: RecipeProblem, data: TrajectorySet) -> tuple[TrajectorySet, int]:
    """The saves a variant can predict, and from how many to how many of them errors are taken."""
    every = problem.report_every
    if isinstance(variant.integrator, FlowMap) and variant.integrator.longest_step > 1.01 * float(data.times[1]):
        # Steps from one reported time to the next say nothing of those between.
        return data.thinned(every), 1
    return data, every


def active_from(problem: RecipeProblem) -> float | None:
    """The value, in model space, from which on tissue is active; None where nothing is to arrive."""
    return (ACTIVE_MV - problem.offset) / problem.scale if isinstance(problem, TissueProblem) else None


def check_modes(variant: Variant):
    wanted, view = getattr(variant.network, "n_modes", 0), variant.view
    # FNO's modes are the grid's own, not those of a Laplacian.
    if wanted > view.n_modes and not isinstance(variant.network, FNOConfig):
        raise InputError(f"network.n_modes is {wanted}, but view.n_modes only {view.n_modes}: set both")


def check_same(found: RunCard, wanted: RunCard, folder: Path):
    for name in ("recipe", "problem", "variant", "data_fingerprint"):
        if to_json(getattr(found, name)) != to_json(getattr(wanted, name)):
            raise InputError(f"{folder}: was begun with another {name.replace('_', ' ')}; resume it with the same one")
