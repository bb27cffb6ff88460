"""Numbers in text files, as tables whose rows know their place there; and a file's bytes, or why there are none."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError

# Whole numbers up to here are exact in double precision.
LARGEST_WHOLE = 2.0**53
# Powers of ten up to here are, too.
POWERS_OF_TEN = 10.0 ** np.arange(23)
_SPACE_FOR_E = bytes.maketrans(b"eE", b"  ")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers of a file, row by row, rows of any width; a row knows its place in the file, for messages."""

    numbers: np.ndarray  # all of them, one after the other
    starts: Int[np.ndarray, " row"]  # of a row in `numbers`
    widths: Int[np.ndarray, " row"]
    places: Int[np.ndarray, " row"]
    place: str = "line"  # what `places` counts

    @property
    def n_rows(self) -> int:
        return len(self.starts)

    def where(self, row: int | np.integer) -> str:
        return f"{self.place} {self.places[row]}"

    def rest(self, n_skipped: int) -> "Table":
        """The rows after the first few."""
        kept = slice(n_skipped, None)
        return replace(self, starts=self.starts[kept], widths=self.widths[kept], places=self.places[kept])


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What stands in the way of reading a file becomes one line that says so."""
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file")
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    except InputError:
        raise
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"{str(path)!a}: can't be read ({error})") from None


def file_bytes(path: Path) -> bytes:
    """All of a file."""
    with readable(path):
        return path.read_bytes()


def without_comments(data: bytes, mark: bytes = b"#") -> bytes:
    """A text with spaces for what follows the mark on a line: everything else stays in its place."""
    start = data.find(mark)
    if start < 0:
        return data
    # In a loop: what `re.sub` builds is many times the size of a file of comments.
    text = bytearray(data)
    while start >= 0:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        text[start:end] = b" " * (end - start)
        start = data.find(mark, end)
    return bytes(text)


def table_of(path: Path, data: bytes, *, first_line: int = 1) -> Table:
    """The numbers of a text that is nothing else, comments (# to the end of a line) apart."""
    data = without_comments(data)
    return table_laid_out(path, data, *layout(data), first_line=first_line)


def table_laid_out(
    path: Path, data: bytes, tokens: np.ndarray, starts: np.ndarray, lines: np.ndarray, *, first_line: int = 1
) -> Table:
    """The same of a text whose layout is known."""
    widths = np.diff(starts, append=starts.dtype.type(len(tokens)))
    numbers = _numbers(path, data, tokens, first_line)
    return Table(numbers=numbers, starts=starts, widths=widths, places=lines + starts.dtype.type(first_line))


def columns(path: Path, table: Table, n_columns: int, what: str) -> Float[np.ndarray, "row column"]:
    """The rows of a table, which should all be `n_columns` wide: `what` names them."""
    wrong = np.flatnonzero(table.widths != n_columns)
    if len(wrong):
        found = f"{table.widths[wrong[0]]} number{'s' if table.widths[wrong[0]] > 1 else ''}"
        raise InputError(f"{path}, {table.where(wrong[0])}: {what} expected, {found} found")
    if not table.n_rows:
        return np.empty((0, n_columns))
    return table.numbers[table.starts[0] :][: table.n_rows * n_columns].reshape(-1, n_columns)


def finite_points(path: Path, points: Float[np.ndarray, "node 3"], table: Table) -> Float[np.ndarray, "node 3"]:
    """The same points, of which there is one at least and all are numbers; a point has a row of the table."""
    if not len(points):
        raise InputError(f"{path}: holds no points")
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise InputError(f"{path}, {table.where(bad[0])}: a coordinate is not finite; mend or remove that point")
    return points


def node_numbers(
    path: Path,
    nodes: Float[np.ndarray, "cell corner"],
    table: Table,
    rows: Int[np.ndarray, " cell"],
    n_nodes: int | None,
) -> Int[np.ndarray, "cell corner"]:
    """Whole numbers from 0, below `n_nodes` if that is known; `rows` of the table are where they stand."""
    limit = LARGEST_WHOLE if n_nodes is None else n_nodes
    is_good = (nodes >= 0) & (nodes < limit) & (np.floor(nodes) == nodes)
    if not is_good.all():
        cell, corner = np.argwhere(~is_good)[0].tolist()
        fault = "is not a node number" if n_nodes is None else f"is not one of the {n_nodes} nodes, which count from 0"
        raise InputError(f"{path}, {table.where(int(rows[cell]))}: {nodes[cell, corner]:.15g} {fault}")
    return nodes.astype(np.int64)


def whole_if_exact(numbers: Float[np.ndarray, " cell"]) -> Int[np.ndarray, " cell"] | Float[np.ndarray, " cell"]:
    """The same numbers, as integers if all are whole: tags are, though some tools write 11.0."""
    is_whole = (np.abs(numbers) <= LARGEST_WHOLE) & (np.floor(numbers) == numbers)
    return numbers.astype(np.int64) if is_whole.all() else numbers


def is_space(letters: np.ndarray) -> np.ndarray:
    """True at spaces, tabs and the ends of lines."""
    # Bytes below 9 turn large: one comparison for five letters.
    return (letters == ord(" ")) | (letters - np.uint8(ord("\t")) < 5)


def layout(data: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where tokens start in a text, which of them start a line, and those lines, from 0."""
    letters = np.frombuffer(data, np.uint8)
    # Small integers where they do: a file of one-letter rows has as many of each as half its bytes.
    index = np.int32 if len(data) < 2**31 else np.int64
    tokens = np.flatnonzero(_is_start(letters)).astype(index)
    first = np.zeros(data.count(b"\n") + 2, dtype=index)
    first[1:-1] = np.searchsorted(tokens, np.flatnonzero(letters == ord("\n")).astype(index))
    first[-1] = len(tokens)
    # A line without a token starts where the next one does.
    lines = np.flatnonzero(np.diff(first)).astype(index)
    return tokens, first[lines], lines


def _is_start(letters: np.ndarray) -> np.ndarray:
    is_start = ~is_space(letters)
    is_start[1:] &= ~is_start[:-1].copy()
    return is_start


def _numbers(path: Path, data: bytes, tokens: np.ndarray, first_line: int) -> np.ndarray:
    numbers = _exact(data, tokens)
    if numbers is None:
        numbers = _parsed(data, len(tokens))
    if numbers is not None:
        return numbers
    # The first bad token is in [low, high): halved, for most of a large file is good.
    low, high = 0, len(tokens)
    while high - low > 1:
        middle = (low + high) // 2
        is_good = _parsed(data[tokens[low] : tokens[middle]], middle - low) is not None
        low, high = (middle, high) if is_good else (low, middle)
    start = int(tokens[low])
    line = data.count(b"\n", 0, start) + first_line
    raise InputError(f"{path}, line {line}: {shown(data[start : start + 100].split()[0])} is not a number")


def _exact(text: bytes, tokens: np.ndarray) -> np.ndarray | None:
    """All numbers of a text as digits times a power of ten, in a third of the time that one by one takes.

    Both are exact, so that the product is the nearest number there is. None where they can't be, or where the text is
    not of numbers.
    """
    letters = np.frombuffer(text, np.uint8)
    is_sign = (letters == ord("-")) | (letters == ord("+"))
    dots, marks = (_places(is_there, tokens.dtype) for is_there in (letters == ord("."), (letters | 32) == ord("e")))
    after = np.minimum(marks + 1, len(letters) - 1)
    # Elsewhere a sign would start another number: 1-2.
    if np.count_nonzero(is_sign) != np.count_nonzero(is_sign[tokens]) + np.count_nonzero(is_sign[after]):
        return None
    whole = _parsed(text.translate(_SPACE_FOR_E, b"."), len(tokens) + len(marks), np.int64)
    if whole is None or not ((whole >= -LARGEST_WHOLE) & (whole <= LARGEST_WHOLE)).all():
        return None
    if not len(dots) and not len(marks):
        return whole.astype(float)
    # Of short numbers there are so many that what follows would take too much memory.
    if len(letters) < 5 * len(tokens):
        return None
    dotted, marked = (np.searchsorted(tokens, places, side="right").astype(tokens.dtype) - 1 for places in (dots, marks))
    if (np.diff(marked) == 0).any() or (np.diff(dotted) == 0).any():
        return None
    power = np.zeros(len(tokens), dtype=np.int16)
    last = len(letters) - 1 - _places(_is_start(letters[::-1]), tokens.dtype)[::-1]
    if len(marks):
        exponents = marked + np.arange(1, len(marks) + 1)
        power[marked], last[marked] = whole[exponents].clip(-999, 999), marks - 1
        whole = np.delete(whole, exponents)
    n_decimals = (last[dotted] - dots).clip(-1, 999)
    power[dotted] -= n_decimals.astype(np.int16)
    if n_decimals.min(initial=0) < 0 or np.abs(power).max() >= len(POWERS_OF_TEN):
        return None
    numbers = whole.astype(float)
    numbers *= POWERS_OF_TEN[np.maximum(power, 0)]
    numbers /= POWERS_OF_TEN[np.maximum(-power, 0)]
    return numbers


def _places(is_there: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.flatnonzero(is_there).astype(dtype)


def _parsed(text: bytes, n_tokens: int, dtype: type = np.float64) -> np.ndarray | None:
    """All numbers of a text, at once; None if there are not as many as tokens."""
    if not n_tokens:
        return np.empty(0, dtype)
    numbers = np.empty(0)
    with warnings.catch_warnings(), suppress(ValueError, DeprecationWarning):
        # Older NumPy warns where the text is no number, and gives those before it.
        warnings.simplefilter("error")
        numbers = np.fromstring(text, dtype, sep=" ")
    return numbers if len(numbers) == n_tokens else None


def shown(token: bytes) -> str:
    return ascii(token[:20].decode("latin-1") + ("..." if len(token) > 20 else ""))
