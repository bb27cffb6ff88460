"""In which units a problem's numbers are."""

from dataclasses import dataclass

from gfunk.recipes.recipe import RecipeProblem
from gfunk.recipes.tissue_data import TissueProblem


@dataclass(frozen=True, kw_only=True)
class Units:
    """As NetCDF writes them; 1 where numbers have none."""

    value: str = "1"
    time: str = "1"
    length: str = "1"


OF_TISSUE = Units(value="mV", time="ms", length="mm")


def problem_units(problem: RecipeProblem | None) -> Units:
    return OF_TISSUE if isinstance(problem, TissueProblem) else Units()
