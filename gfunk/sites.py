"""Where a wave starts: a place on the surface, a node, or a region by its name."""

import numpy as np
from jaxtyping import Float, Int

from gfunk.atria.anatomy import Place
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.nearest import OntoSurface, nearest_on_triangles

FARTHEST_SITE_MM = 5.0


def site_at(domain: Domain, place: Place | str, onto: OntoSurface | None = None) -> tuple[float, float, float]:
    """A place on the surface: of a node, of a region (its node nearest to its centre), or the nearest to x, y, z."""
    if isinstance(place, str):
        place = region_node(domain, place)
    if isinstance(place, int | np.integer):
        if not 0 <= place < domain.n_nodes:
            raise InputError(f"site: node {place} is none of the mesh, whose nodes run from 0 to {domain.n_nodes - 1}")
        x, y, z = domain.points[place].tolist()
        return x, y, z
    asked = np.asarray(place, dtype=np.float64)
    if asked.shape != (3,) or not np.isfinite(asked).all():
        raise InputError(f"site {place}: a node, a region or three finite coordinates, in mm, expected")
    (found,) = (onto or nearest_on_triangles(domain.points, domain.cells))(asked[None])
    away = float(np.linalg.norm(found - asked))
    if away > FARTHEST_SITE_MM:
        raise InputError(
            f"site {said_place(asked)} lies {away:.1f} mm from the surface: the nearest place on it is {said_place(found)} "
            "(in mm)"
        )
    x, y, z = found.tolist()
    return x, y, z


def region_node(domain: Domain, name: str) -> int:
    """The node of a region nearest to its centre."""
    nodes = region_nodes(domain, name)
    return int(nodes[_nearest_to_centre(domain.points[nodes])])


def region_nodes(domain: Domain, name: str) -> Int[np.ndarray, " _"]:
    """In rising order; small and capital letters are the same."""
    known = {region: nodes for region, nodes in domain.regions.items() if len(nodes)}
    for region, nodes in known.items():
        if region.lower() == name.lower():
            return np.sort(nodes)
    names = f"known are {', '.join(known)}" if known else "this mesh has none: give x,y,z"
    raise InputError(f"site: no region {name!r}; {names}")


def usual_site(domain: Domain) -> tuple[int, str]:
    """A node to start from where none is said, and where that is: beside the right superior vein, near which the beat of
    the sinus node comes over; without regions in the middle of the surface."""
    if len(domain.regions.get("RSPV", ())):
        return region_node(domain, "RSPV"), "at the right superior vein"
    return _nearest_to_centre(domain.points), "at the node nearest to the middle of all"


def said_place(place: Float[np.ndarray, " 3"]) -> str:
    return ",".join(f"{x:.4g}" for x in place)


def _nearest_to_centre(points: Float[np.ndarray, "_ 3"]) -> int:
    return int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmin())
