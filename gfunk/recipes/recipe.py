"""Recipe: an experiment as data. A recipe has one problem and several variants, each a way to learn it."""

from dataclasses import dataclass, replace

from gfunk.errors import InputError
from gfunk.operators.make import NetworkConfig
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.tissue_data import FibreSquareProblem, RectangleProblem
from gfunk.rollout import RK4, Adaptive, Direct, Euler, FlowMap
from gfunk.simulation import View
from gfunk.training import TrainingConfig

RecipeProblem = HeatProblem | RectangleProblem | FibreSquareProblem | AtriumProblem


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to learn a recipe's problem: how domains are seen, the network, its integration and its training."""

    name: str
    network: NetworkConfig
    view: View
    integrator: Euler | RK4 | FlowMap | Adaptive | Direct
    training: TrainingConfig | None  # None: nothing to learn
    paper_parameters: int | None = None
    paper_rel_l2: float | None = None
    starts_from: str = ""  # a trained run or a shipped model of the same network, whose weights it begins with


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """A recipe made so small that two cores simulate and train it in minutes: it shows that all works, not how well."""

    problem: RecipeProblem
    ours: Variant
    n_train: int
    n_val: int
    n_test: int


SIZES = ("full", "smoke")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A problem, how much data it has, and the variants; the default variant is `ours` where there is one."""

    name: str
    about: str
    problem: RecipeProblem
    # Samples: domains, each with all its trajectories.
    n_train: int
    n_val: int
    n_test: int
    variants: tuple[Variant, ...]
    smoke: Smoke
    shipped: str = ""  # the model that comes with the package and predicts this, if it has another name

    def sized(self, size: str) -> "Recipe":
        """This recipe at one of SIZES; `ours` is the only variant of a smoke size."""
        if size not in SIZES:
            raise InputError(f"recipe {self.name} has no size {size!r}; it has {', '.join(SIZES)}")
        if size == "full":
            return self
        small = self.smoke
        return replace(
            self,
            problem=small.problem,
            variants=(small.ours,),
            n_train=small.n_train,
            n_val=small.n_val,
            n_test=small.n_test,
        )

    def variant(self, name: str | None) -> Variant:
        known = {variant.name: variant for variant in self.variants}
        chosen = name or ("ours" if "ours" in known else self.variants[0].name)
        if chosen not in known:
            where = " at smoke size" if self.variants == (self.smoke.ours,) else ""
            raise InputError(f"recipe {self.name} has no variant {chosen!r}{where}; it has {', '.join(known)}")
        return known[chosen]
