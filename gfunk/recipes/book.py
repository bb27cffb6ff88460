"""All recipes by name."""

from gfunk.errors import InputError
from gfunk.recipes.cardiac import atria, atria_190, atria_converged, atria_many, random_fibres, rectangles, single_atrium
from gfunk.recipes.heat import heat
from gfunk.recipes.recipe import Recipe

ALL = heat, rectangles, random_fibres, single_atrium, atria, atria_190, atria_many, atria_converged
RECIPES = {recipe.name: recipe for recipe in ALL}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]
