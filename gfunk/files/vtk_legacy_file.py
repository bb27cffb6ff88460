"""A legacy VTK file as a stream of words, lines and arrays."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import numpy as np

from gfunk.errors import InputError
from gfunk.files.vtk_numbers import count_of, numbers_of

# VTK writes its ids as 32 bits here, whatever they are in memory; `long` is that of Linux and macOS.
_DTYPES = {
    "bit": "u1", "unsigned_char": "u1", "char": "i1", "signed_char": "i1", "unsigned_short": "u2", "short": "i2",
    "unsigned_int": "u4", "int": "i4", "unsigned_long": "u8", "long": "i8", "vtkidtype": "i4", "vtktypeint64": "i8",
    "vtktypeuint64": "u8", "unsigned_long_long": "u8", "long_long": "i8", "float": "f4", "double": "f8",
}  # fmt: skip
_SPACE = b" \t\r\n\v\f\0"
_WORD = re.compile(rb"[^ \t\r\n\v\f\0]+")
_GAP = re.compile(rb"[ \t\r\n\v\f\0]*")
_LONGEST_WORD = 4096


@dataclass(kw_only=True)
class LegacyFile:
    """The content and how far it has been read."""

    content: bytes
    is_binary: bool
    position: int

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Where each word of a text file starts, found once: an array of n numbers then ends n words on."""
        is_space = np.isin(np.arange(256), np.frombuffer(_SPACE, np.uint8))[np.frombuffer(self.content, np.uint8)]
        is_start = ~is_space
        is_start[1:] &= is_space[:-1]
        return np.flatnonzero(is_start)

    def place(self) -> str:
        """For messages only: it counts lines from the start."""
        n_lines = self.content.count(b"\n", 0, self.position)
        return f"byte {self.position}" if self.is_binary else f"line {n_lines + 1}"

    def is_at_end(self) -> bool:
        self._skip_space()
        return self.position >= len(self.content)

    def word(self) -> str:
        self._skip_space()
        found = _WORD.match(self.content, self.position, self.position + _LONGEST_WORD)
        if found is None:
            raise InputError("the file ends too early: it was cut short")
        self.position = found.end()
        return found[0].decode("utf-8", "replace")

    def keyword(self) -> str:
        return self.word().lower()

    def name(self) -> str:
        return unquote(self.word())

    def count(self, what: str) -> int:
        word = self.word()
        with self._placed():
            return count_of(word, what)

    def has_next(self, keyword: bytes) -> bool:
        gap = _GAP.match(self.content, self.position)
        start = gap.end() if gap else self.position
        return self.content[start : start + len(keyword)].upper() == keyword

    def line(self) -> bytes:
        """The rest of this line; the place is then at the start of the next."""
        end = self.content.find(b"\n", self.position)
        end = len(self.content) if end < 0 else end
        line = self.content[self.position : end]
        self.position = min(end + 1, len(self.content))
        return line

    def array(self, n_values: int, type_name: str, what: str) -> np.ndarray:
        """The next n values, which in a binary file start on the next line."""
        code = _DTYPES.get(type_name.lower())
        if code is None:
            raise InputError(f"{self.place()}: {what} has the type {type_name[:40]!r}, which is not read")
        if self.is_binary:
            self.line()
            return self._binary(n_values, np.dtype(code), type_name.lower() == "bit", what)
        return self._text(n_values, np.dtype(code), what)

    def skip_strings(self, n_strings: int):
        """Text values: a line each, or in a binary file a length in 1, 2, 4 or 8 bytes and the characters."""
        self.line()
        for _ in range(n_strings):
            if self.position >= len(self.content):
                raise InputError("the file ends within an array of strings: it was cut short")
            if self.is_binary:
                width = {3: 1, 2: 2, 1: 4, 0: 8}[self.content[self.position] >> 6]
                length = int.from_bytes(self.content[self.position : self.position + width], "big")
                self.position += width + length % (1 << (8 * width - 2))
            else:
                self.line()

    def skip_metadata(self):
        """METADATA ends with an empty line."""
        self.line()
        while self.position < len(self.content) and self.line().strip():
            pass

    def _skip_space(self):
        gap = _GAP.match(self.content, self.position)
        self.position = gap.end() if gap else self.position

    def _binary(self, n_values: int, dtype: np.dtype, is_bit: bool, what: str) -> np.ndarray:
        n_bytes = (n_values + 7) // 8 if is_bit else n_values * dtype.itemsize
        self._check_room(n_bytes, len(self.content) - self.position, n_values, what)
        values = np.frombuffer(self.content, dtype.newbyteorder(">"), n_bytes // dtype.itemsize, self.position)
        self.position += n_bytes
        return np.unpackbits(values, count=n_values) if is_bit else values.astype(dtype)

    def _text(self, n_values: int, dtype: np.dtype, what: str) -> np.ndarray:
        first = int(np.searchsorted(self.word_starts, self.position))
        self._check_room(n_values, len(self.word_starts) - first, n_values, what)
        is_last = first + n_values == len(self.word_starts)
        end = len(self.content) if is_last else int(self.word_starts[first + n_values])
        with self._placed():
            values = numbers_of(self.content[self.position : end].replace(b"\0", b" "), dtype, what)
        if len(values) != n_values:
            raise InputError(f"{self.place()}: {what} needs {n_values} numbers, but {len(values)} were read")
        self.position = end
        return values

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Says where, in the messages of functions that don't know."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.place()}: {error}") from None

    def _check_room(self, needed: int, left: int, n_values: int, what: str):
        if needed > left:
            raise InputError(f"{self.place()}: {what} says {n_values} values, more than the file holds: it was cut short")
