"""What there is: recipes, results, models that come with the package; and how a run gets among those."""

import argparse
from collections.abc import Sequence

from gfunk.console import show


def recipes(options: argparse.Namespace):
    from gfunk.operators.make import make_operator, n_parameters
    from gfunk.recipes.book import RECIPES
    from gfunk.records import best_results

    # Results are those of full sizes.
    measured = best_results() if options.size == "full" else {}
    rows = [
        {
            "name": recipe.name,
            "variant": variant.name,
            "parameters": n_parameters(make_operator(variant.network)),
            "paper_parameters": variant.paper_parameters,
            "paper_rel_l2": variant.paper_rel_l2,
            "rel_l2": measured.get((recipe.name, variant.name), {}).get("rel_l2"),
            "learned_from": measured.get((recipe.name, variant.name), {}).get("recipe"),
            "n_train": recipe.n_train,
            "n_test": recipe.n_test,
        }
        for recipe in (each.sized(options.size) for each in RECIPES.values())
        for variant in recipe.variants
    ]
    columns = ["name", "variant", "parameters", "paper_parameters", "paper_rel_l2", "rel_l2", "learned_from"]
    show(options.json, rows, rows, columns)


def results(options: argparse.Namespace):
    from gfunk.records import recorded

    rows = recorded()
    shown = [row for row in rows if "rel_l2" in row]
    columns = ["recipe", "label", "rel_l2", "n", "nodes", "parameters", "hardware", "commit", "command"]
    show(options.json, rows, shown, columns)


def models(options: argparse.Namespace):
    from gfunk.pretrained import pretrained_names

    _show_models(options.json, pretrained_names())


def ship(options: argparse.Namespace):
    from gfunk import pretrained

    card = pretrained.ship(
        options.run, name=options.name, record=options.record, label=options.label, limits=options.limits,
        data=options.data, n_train=options.n_train, n_val=options.n_val,
        precision=options.dtype, unfinished=options.unfinished,
    )  # fmt: skip
    _show_models(options.json, [card.name])


def _show_models(as_json: bool, names: Sequence[str]):
    from gfunk.pretrained import n_bytes, read_model_card

    rows = []
    for card in map(read_model_card, names):
        about = {"name": card.name, "recipe": card.recipe, "variant": card.variant.name, "parameters": card.parameters}
        tested = {"rel_l2": card.tested["rel_l2"], "n": card.tested["n"]}
        rows.append(about | tested | {"precision": card.precision, "bytes": n_bytes(card.name), "limits": card.limits})
    show(as_json, rows, rows, ["name", "recipe", "variant", "parameters", "rel_l2", "n", "precision", "bytes"])
