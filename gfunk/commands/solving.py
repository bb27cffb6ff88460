"""The solver: data made with it, and its laws tried out."""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from gfunk.console import bar, show
from gfunk.errors import InputError


def simulate(options: argparse.Namespace):
    from gfunk.recipes.book import recipe_named
    from gfunk.settings import with_overrides
    from gfunk.simulation import missing_seeds, simulate_missing, split_of, split_seeds

    recipe = recipe_named(options.recipe).sized(options.size)
    problem = with_overrides(recipe.problem, options.set)
    sizes = {"train": recipe.n_train, "val": recipe.n_val, "test": recipe.n_test}
    # A seed belongs to one split.
    split = options.split or (split_of(options.seed) if options.seed is not None else None)
    splits = [split] if split else list(sizes)
    seeds_of = {split: split_seeds(split, options.n or sizes[split], options.seed) for split in splits}
    device = "cpu"
    if options.device != "cpu" and options.scheduler is not None:
        raise InputError("--scheduler simulates on the CPUs of its workers: leave out --device")
    if options.device != "cpu":
        from gfunk.experiments import chosen_device

        device = str(chosen_device(options.device))
    # All splits in one go: while the last samples of one are solved, the next one's are prepared.
    missing = {split: missing_seeds(options.out / split, problem, seeds) for split, seeds in seeds_of.items()}
    folders = {seed: options.out / split for split, seeds in missing.items() for seed in seeds}
    started, seconds = time.monotonic(), dict.fromkeys(splits, 0.0)
    with bar(f"simulating {', '.join(splits)}", len(folders)) as advance, _uncompiled(options.size == "smoke"):
        for seed in simulate_missing(problem, folders, options.workers, device, options.scheduler):
            now = time.monotonic()
            seconds[split_of(seed)] += now - started
            started = now
            advance()
    done = [
        {
            "split": split, "folder": str(options.out / split), "samples": len(seeds_of[split]),
            "simulated": len(missing[split]), "seconds": round(seconds[split], 2),
        }
        for split in splits
    ]  # fmt: skip
    show(options.json, done, done)


@contextmanager
def _uncompiled(is_so: bool) -> Iterator[None]:
    """The solver's cells are not compiled, here and in new processes, which for little work takes longer than the work."""
    before = os.environ.get("GFUNK_COMPILE")
    if is_so and before is None:
        os.environ["GFUNK_COMPILE"] = "0"
    try:
        yield
    finally:
        if is_so and before is None:
            del os.environ["GFUNK_COMPILE"]


def verify(options: argparse.Namespace) -> int:
    from gfunk.experiments import chosen_device
    from gfunk.figures import pyplot
    from gfunk.records import hardware
    from gfunk.verification import checks

    device = chosen_device(options.device)
    if options.out is not None:
        # Both refuse now, not after minutes.
        pyplot()
        options.out.mkdir(parents=True, exist_ok=True)
    findings, pictures = [], []
    started = time.monotonic()
    for check in checks(options.quick):
        with bar(check.about, check.n_parts) as advance:
            evidence = check.gather(device, advance)
        findings += evidence.findings
        if options.out is not None:
            for name, draw in evidence.pictures.items():
                draw(options.out / name)
                pictures.append(str(options.out / name))
    rows = [asdict(finding) | {"passed": finding.passed} for finding in findings]
    all_passed = all(finding.passed for finding in findings)
    answer = {
        "passed": all_passed, "device": hardware(device), "seconds": round(time.monotonic() - started, 1),
        "pictures": pictures, "rows": rows,
    }  # fmt: skip
    show(options.json, answer, rows, ["law", "found", "known", "tolerance", "unit", "passed"])
    return 0 if all_passed else 1
