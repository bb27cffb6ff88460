"""How tissue is solved: its diffusivity, the schemes to step by, and what a domain is to one of them."""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Mass
from gfunk.physics.diffusion import HalfStep, Solving, half_step, solving_when_halved

SURFACE_TO_VOLUME = 140.0  # 1/mm
CAPACITANCE = 0.01  # uF/mm^2


def diffusivity(conductivity_mS_per_mm: float) -> float:
    """D = sigma / (beta Cm), mm^2/ms: what a Domain's diffusion holds for tissue of this conductivity."""
    return conductivity_mS_per_mm / (SURFACE_TO_VOLUME * CAPACITANCE)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How to step."""

    dt_ms: float
    mass: Mass = "consistent"
    order: Literal[1, 2] = 2  # of the cells' steps
    # What each diffusion solve leaves of its first guess's error. The guess is the step before, so little is enough:
    # activation times with 0.1 and 1e-6 differ by 0.005 ms at steps of 0.05 ms.
    reduction: float = 0.1


SCHEMES = {
    # Twice the cells' work a step, but steps may be several times longer for the same error. Mixed mass errs little
    # more than half as much on meshes of 0.1 and 0.2 mm, and is solved in fewer iterations (docs/verification.md).
    "accurate": Scheme(dt_ms=0.05, mass="mixed"),
    # On edges well below a front's width the better one, on atria half the error already at 0.5 mm. But where edges are long
    # it is late, so on the paper's sheets, 0.2 mm, it errs twice as much; and the recipes' models have learned the other.
    "balanced": Scheme(dt_ms=0.05, mass="balanced"),
    # A.2.1: Crank-Nicolson with 0.2 ms. It overshoots the peak and slows waves (docs/verification.md).
    "paper": Scheme(dt_ms=0.2, order=1),
}


def coupling(domain: Domain, scheme: str | Scheme = "accurate", known: Solving | None = None) -> HalfStep:
    """What the domain's nodes mean to each other in a step of this scheme. known: `solving` of it, where that was found."""
    how = named(SCHEMES, scheme, "scheme")
    return half_step(domain, how.dt_ms, how.mass, known)


def solving(domain: Domain, scheme: str | Scheme, n_halvings: int) -> Solving:
    """How steps of this scheme are solved on the domain with its triangles halved so often.

    Parts of a triangle have its S, and a quarter of its M: as if the step were four times as long. Where bounds by triangles
    are too far apart, the lowest eigenvalue of that is taken. It is too high: of the few modes below it more is left than of
    others, on wild triangles up to a fifth; but with the same sign, so that nothing swings (tests/test_diffusion.py).
    """
    how = named(SCHEMES, scheme, "scheme")
    found = solving_when_halved(domain, how.dt_ms, how.mass, n_halvings)
    if found is None:
        longer = coupling(domain, replace(how, dt_ms=4**n_halvings * how.dt_ms)).solving
        # A side's middle has six neighbours, or four.
        found = replace(longer, n_slots=max(longer.n_slots, 6) if n_halvings else longer.n_slots)
    return found


Known = TypeVar("Known")


def named(known: dict[str, Known], asked: str | Known, what: str) -> Known:
    """What is known by the asked name; what is asked for itself, as it is."""
    if not isinstance(asked, str):
        return asked
    if asked not in known:
        raise InputError(f"{what} {asked!r} is none of {', '.join(known)}")
    return known[asked]
