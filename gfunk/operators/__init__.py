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
