"""Operators: each answers "how does u change?" for any domain; nothing above them knows more than this interface."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from gfunk.batch import Batch


@runtime_checkable
class Operator(Protocol):
    """du/dt of a field on a batch of domains: its mean over the next tau, or the rate itself where tau is 0."""

    def __call__(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]: ...


@runtime_checkable
class DirectOperator(Protocol):
    """u at any times from the first state alone."""

    def first(self, u: Float[Tensor, "batch node channel"], batch: Batch) -> Float[Tensor, "batch node input"]:
        """The first state with all that has to be found of it once: nothing in it is learned."""
        ...

    def __call__(
        self, first: Float[Tensor, "batch node input"], batch: Batch, times: Float[Tensor, " time"]
    ) -> Float[Tensor, "batch time node channel"]: ...
