"""Numbers written as text, for both families of VTK files."""

import re
import warnings

import numpy as np

from gfunk.errors import InputError

# Each costs some time, however small: a file made of nothing else would be read for minutes.
MOST_ARRAYS = 20_000


def numbers_of(text: bytes, dtype: np.dtype, what: str) -> np.ndarray:
    """Every number in the text, which must hold nothing else."""
    # Whole numbers are read at full width, so that one too large for its type is seen rather than wrapped.
    wide = np.dtype(np.int64) if dtype.kind in "iu" and dtype.itemsize < 8 else dtype
    # An empty text would be read as one -1 by some versions of NumPy.
    if not text.strip():
        return np.zeros(0, dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = np.fromstring(text, wide, sep=" ")
    except (ValueError, DeprecationWarning, RuntimeWarning):
        raise InputError(f"{what}: holds text that is not a number of type {dtype.name}") from None
    if wide != dtype:
        limits = np.iinfo(dtype)
        if len(values) and (values.min() < limits.min or values.max() > limits.max):
            raise InputError(f"{what}: holds numbers beyond the range of {dtype.name}")
    return values.astype(dtype, copy=False)


def count_of(text: str, what: str) -> int:
    """A count, as the file writes it. More than 18 digits is no count, and would not fit our integers."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{what}: a count expected, not {text[:40]!r}")
    return int(text)


def shaped(values: np.ndarray, n_components: int) -> np.ndarray:
    """One row for each point or cell; a single component is a plain column."""
    # A count far beyond any use, which an array without rows could otherwise carry along.
    if n_components > 100_000:
        raise InputError(f"an array of {n_components} components is not read: the file is damaged")
    return values if n_components == 1 else values.reshape(-1, n_components)


def points_of(values: np.ndarray) -> np.ndarray:
    """Coordinates; VTK also allows whole numbers."""
    return (values if values.dtype.kind == "f" else values.astype(np.float64)).reshape(-1, 3)
