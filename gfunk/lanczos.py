"""The lowest eigenpairs of S x = lambda M x by block Lanczos, and a count that none of them was missed.

The operator is T = (S - shift M)^-1 M with the shift amid the wanted eigenvalues: both sides of it stand out, and a basis of
about twice as many vectors as are wanted holds them. Vectors come in blocks, as a processor multiplies matrices several
times faster than vectors; and a block sees equal eigenvalues, of which a single vector sees but one.
"""

from math import pi

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh, solve_triangular
from scipy.sparse import csr_array

from gfunk.errors import InputError
from gfunk.laplacian import Laplacian
from gfunk.sparse_solver import Solve, factored

BLOCK = 8  # wider ones multiply faster, but the basis grows: 16 took a fifth longer at 23,000 nodes, 32 half as long again
BEYOND = 8  # eigenvalues found beyond those wanted: up to the widest gap among these all are counted
ACCURACY, ACCURACY_BEYOND = 1e-9, 1e-3  # of T's residuals
FEWEST_AMID = 4 * BLOCK  # of fewer modes a shift below all of them is as good
MAX_SHIFTS = 6
MAX_WIDENINGS = 4


def lowest_eigenpairs(
    laplacian: Laplacian, n_wanted: int
) -> tuple[Float[np.ndarray, " mode"], Float[np.ndarray, "node mode"]]:
    """In rising order. Some hundreds of nodes more than modes are needed: the basis must have room."""
    shift, solve = _shift_amid(laplacian, n_wanted)
    rng = np.random.default_rng(0)  # a fixed start makes two calls agree to the last bit
    first = rng.standard_normal((laplacian.n_nodes, BLOCK))
    basis = _Basis(solve, laplacian.mass, first, min(6 * n_wanted + 50 * BLOCK, laplacian.n_nodes - 2 * BLOCK))
    for _ in range(1 + MAX_WIDENINGS):
        values, turn = _converged(basis, shift, n_wanted)
        n_below = _at_a_gap(values, n_wanted)
        # Not in the middle: were all of an eigenvalue's copies missed, symmetry might have put them there.
        between = 0.6 * values[n_below - 1] + 0.4 * values[n_below]
        if _factored(laplacian, between)[1] <= n_below:
            return values[:n_wanted], basis.vectors(turn[:, :n_wanted], values[:n_wanted] - shift)
        basis.widen(rng)
    raise InputError(f"some of the {n_wanted} lowest modes were missed again and again: look for very thin cells")


def _shift_amid(laplacian: Laplacian, n_wanted: int) -> tuple[float, Solve]:
    """A shift with a quarter to three quarters of the wanted eigenvalues below, or one below all, and what solves there."""
    mean = laplacian.stiffness.diagonal().sum() / laplacian.mass.diagonal().sum()
    # Weyl's law for a square grid, whose mean eigenvalue is four over its spacing squared.
    last = pi * mean * n_wanted / laplacian.n_nodes
    shift = last / 2
    for _ in range(MAX_SHIFTS if n_wanted >= FEWEST_AMID else 0):
        solve, n_below = _factored(laplacian, shift)
        if n_wanted / 4 <= n_below <= 3 * n_wanted / 4:
            return shift, solve
        shift *= np.clip(n_wanted / 2 / max(n_below, 0.5), 0.1, 10)
    shift = -0.01 * last
    return shift, _factored(laplacian, shift)[0]


def _factored(laplacian: Laplacian, shift: float) -> tuple[Solve, int]:
    return factored(laplacian.stiffness - shift * laplacian.mass)


def _converged(
    basis: "_Basis", shift: float, n_wanted: int
) -> tuple[Float[np.ndarray, " mode"], Float[np.ndarray, "_ mode"]]:
    """Eigenvalues and what they are of the basis, which grows until they have converged."""
    n_found = n_wanted + BEYOND
    allowed = np.where(np.arange(n_found) < n_wanted, ACCURACY, ACCURACY_BEYOND)
    while True:
        basis.grow()
        if basis.n_vectors < 1.5 * n_found or basis.n_blocks % 4:
            continue
        rates, turn, residuals = basis.ritz()
        values = shift + 1 / rates
        # None is negative; what has not converged may seem to be.
        values[values < -1e-3 * abs(shift)] = np.inf
        lowest = np.argsort(values)[:n_found]
        if (residuals[lowest] <= allowed).all():
            return values[lowest], turn[:, lowest]


def _at_a_gap(values: Float[np.ndarray, " mode"], n_wanted: int) -> int:
    """How many lie below the widest gap from the last wanted on; where all of those are equal, below all of them."""
    gaps = np.diff(values)
    widest = n_wanted + int(gaps[n_wanted - 1 :].argmax())
    apart = 1e-6 * values[-1]
    return widest if gaps[widest - 1] > apart else 1 + int(np.flatnonzero(gaps > apart)[-1])


class _Basis:
    """An M-orthonormal basis of what T makes of a first block, again and again, and T within it."""

    def __init__(self, solve: Solve, mass: csr_array, first: Float[np.ndarray, "node _"], most: int):
        self.solve, self.mass, self.most = solve, mass, most
        self.columns = np.empty((len(first), most), order="F")  # memory is taken as they are written, not before
        self.within = np.zeros((most, most))  # T; its upper half alone is written
        self.n_vectors = self.n_blocks = 0  # those that T was applied to
        self.next, self.left = self._orthonormal(first)
        self.last = 0  # how many the last block had

    def grow(self):
        """T applied to the next block; what the basis does not hold of that is the block after it."""
        begin, end = self.n_vectors, self.n_vectors + self.next.shape[1]
        if end > self.most:
            raise InputError(
                f"modes had not converged in {self.n_vectors} vectors: ask for fewer, or look for very thin cells"
            )
        self.columns[:, begin:end] = self.next
        image = self.solve(self.mass @ self.next)
        size = np.linalg.norm(image)
        # T has three terms, so the last two blocks hold nearly all there is to take out. What rounding has left of that, and
        # added of others, is taken out after: in the other order it grew with each block.
        before = begin - self.last
        inside = np.pad(self._take_out(image, before, end), ((before, 0), (0, 0)))
        inside += self._take_out(image, 0, end)
        self.within[:end, begin:end] = inside
        self.next, self.left = self._orthonormal(image)
        if np.abs(np.diag(self.left)).min() < 1e-10 * size:
            # The basis holds all that T makes of some vectors, as on very regular graphs: rounding is left, as good a start
            # as any, but not orthogonal to the basis yet.
            self._take_out(self.next, 0, end)
            self.next, _ = self._orthonormal(self.next)
        self.n_vectors, self.n_blocks, self.last = end, self.n_blocks + 1, end - begin

    def widen(self, rng: np.random.Generator):
        """Blocks are twice as wide from here on, and see twice as many equal eigenvalues."""
        n, more = self.n_vectors, rng.standard_normal(self.next.shape)
        for known in (self.columns[:, :n], self.next, self.columns[:, :n], self.next):
            more -= known @ (known.T @ (self.mass @ more))
        self.next = np.concatenate([self.next, self._orthonormal(more)[0]], axis=1)
        self.left = np.pad(self.left, ((0, more.shape[1]), (0, 0)))

    def ritz(self) -> tuple[Float[np.ndarray, " _"], Float[np.ndarray, "_ _"], Float[np.ndarray, " _"]]:
        """T's eigenvalues within the basis, their vectors there, and what T leaves it by, relative to each."""
        upper = np.triu(self.within[: self.n_vectors, : self.n_vectors])
        rates, turn = eigh(upper + np.triu(upper, 1).T)
        return rates, turn, np.linalg.norm(self.left @ turn[-self.last :], axis=0) / np.abs(rates)

    def vectors(
        self, turn: Float[np.ndarray, "_ mode"], above: Float[np.ndarray, " mode"]
    ) -> Float[np.ndarray, "node mode"]:
        """Of the basis, with T applied once more, which costs nothing here: its errors are mostly far above the shift."""
        found = self.columns[:, : self.n_vectors] @ turn + self.next @ (self.left @ turn[-self.last :]) * above
        return found / np.sqrt(np.sum(found * (self.mass @ found), axis=0))

    def _take_out(self, image: Float[np.ndarray, "node _"], begin: int, end: int) -> Float[np.ndarray, "_ _"]:
        known = self.columns[:, begin:end]
        inside = known.T @ (self.mass @ image)
        image -= known @ inside
        return inside

    def _orthonormal(
        self, block: Float[np.ndarray, "node _"]
    ) -> tuple[Float[np.ndarray, "node _"], Float[np.ndarray, "_ _"]]:
        """The block as M-orthonormal columns times a small matrix."""
        # First in the plain product, so that nearly equal columns lose no digits in the square that Cholesky takes.
        plain, small = np.linalg.qr(block)
        factor = np.linalg.cholesky(plain.T @ (self.mass @ plain))
        return solve_triangular(factor, plain.T, lower=True).T, factor.T @ small
