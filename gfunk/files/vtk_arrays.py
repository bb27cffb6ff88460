"""The arrays of an XML VTK file: text, base64 or raw bytes, compressed or not."""

import lzma
import zlib
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gfunk.errors import InputError
from gfunk.files.vtk_cells import allowance
from gfunk.files.vtk_numbers import count_of, numbers_of

DTYPES = {
    "Int8": "i1", "UInt8": "u1", "Int16": "i2", "UInt16": "u2", "Int32": "i4", "UInt32": "u4", "Int64": "i8",
    "UInt64": "u8", "Float32": "f4", "Float64": "f8",
}  # fmt: skip
_ZLIB, _LZMA = "vtkZLibDataCompressor", "vtkLZMADataCompressor"
_LZMA_MEMORY = 128 * 2**20


@dataclass(kw_only=True)
class ArrayElement:
    """A DataArray: its attributes and the text in it."""

    attributes: dict[str, str]
    text: list[str] = field(default_factory=list)


class ArrayReader:
    """Arrays of one file: how numbers are laid out in it, and how many bytes may still be unpacked."""

    def __init__(self, content: bytes, attributes: Mapping[str, str], appended: Mapping[str, str] | None, appended_at: int):
        """`attributes` are the file's; `appended` those of the tag that starts at `appended_at`, if there is one."""
        orders: dict[str, Literal["<", ">"]] = {"LittleEndian": "<", "BigEndian": ">"}
        order, header = attributes.get("byte_order", "LittleEndian"), attributes.get("header_type", "UInt32")
        if order not in orders or header not in ("UInt32", "UInt64"):
            raise InputError(f"byte_order {order[:40]!r} or header_type {header[:40]!r} is not known to VTK")
        self.order: Literal["<", ">"] = orders[order]
        self.header = np.dtype(DTYPES[header]).newbyteorder(self.order)
        self.compressor = attributes.get("compressor", "")
        if self.compressor not in ("", _ZLIB, _LZMA):
            raise InputError(
                f"compressed with {self.compressor[:40]!r}, which is not read: save it again with zlib or no compression "
                "(ParaView: Compressor Type ZLib or None)"
            )
        self.bytes_left = allowance(len(content))
        self.appended, self.start, self.is_raw = content, 0, False
        if appended is not None:
            encoding = appended.get("encoding", "base64")
            if encoding not in ("raw", "base64"):
                raise InputError(f"appended data are encoded as {encoding[:40]!r}, raw or base64 expected")
            self.is_raw = encoding == "raw"
            # The data follow the first underscore after the tag, which the parser has found well formed.
            self.start = content.find(b"_", _tag_end(content, appended_at)) + 1
        self.has_appended = appended is not None and self.start > 0

    def array(self, element: ArrayElement, what: str) -> np.ndarray:
        """All values of a DataArray, one after another, in this machine's byte order."""
        attributes = element.attributes
        type_name, form = attributes.get("type", ""), attributes.get("format", "ascii")
        if type_name not in DTYPES:
            raise InputError(f"{what}: its type {type_name[:40]!r} is not read")
        dtype = np.dtype(DTYPES[type_name])
        if form == "ascii":
            text = _ascii("".join(element.text), what)
            self._take(dtype.itemsize * (len(text) // 2 + 1), what)
            return numbers_of(text, dtype, what)
        if form == "binary":
            text = _ascii("".join(element.text), what).translate(None, b" \t\r\n")
            content = self._unpacked(_Stream(text, 0, is_raw=False, what=what)) if text else b""
        elif form == "appended":
            if not self.has_appended:
                raise InputError(f"{what}: the file ends before its appended data: it was cut short")
            offset = count_of(attributes.get("offset", ""), f"{what}: its offset")
            content = self._unpacked(_Stream(self.appended, self.start + offset, is_raw=self.is_raw, what=what))
        else:
            raise InputError(f"{what}: its format {form[:40]!r} is none of ascii, binary and appended")
        if len(content) % dtype.itemsize:
            raise InputError(f"{what}: {len(content)} bytes are no whole number of {dtype.name}: the file is damaged")
        return np.frombuffer(content, dtype.newbyteorder(self.order)).astype(dtype)

    def _take(self, n_bytes: int, what: str):
        self.bytes_left -= n_bytes
        if self.bytes_left < 0:
            raise InputError(
                f"{what}: its data would unpack to many times the file's size, which looks like damage or an attack: "
                "if it is sound, save it uncompressed"
            )

    def _numbers(self, content: bytes) -> list[int]:
        return np.frombuffer(content, self.header).tolist()

    def _unpacked(self, stream: "_Stream") -> bytes:
        return self._decompressed(stream) if self.compressor else self._plain(stream)

    def _plain(self, stream: "_Stream") -> bytes:
        """A byte count, then the bytes."""
        width = self.header.itemsize
        (n_bytes,) = self._numbers(stream.read(width))
        if stream.is_padded_after(width) and n_bytes:
            return self._taken(stream.after(width), n_bytes)
        return self._taken(stream, width + n_bytes)[width:]

    def _taken(self, stream: "_Stream", n_bytes: int) -> bytes:
        stream.check_room(n_bytes)
        self._take(n_bytes, stream.what)
        return stream.read(n_bytes)

    def _decompressed(self, stream: "_Stream") -> bytes:
        """Number of blocks, size of a block, size of the last if it is smaller, their compressed sizes; then the blocks."""
        width = self.header.itemsize
        (n_blocks,) = self._numbers(stream.read(width))
        if n_blocks == 0:
            return b""
        stream.check_room((3 + n_blocks) * width)
        _, size, last_size, *packed_sizes = self._numbers(stream.read((3 + n_blocks) * width))
        sizes = [size] * (n_blocks - 1) + [last_size or size]
        self._take(sum(sizes), stream.what)
        packed = memoryview(self._taken(stream.after((3 + n_blocks) * width), sum(packed_sizes)))
        parts, start = [], 0
        for n_packed, n_bytes in zip(packed_sizes, sizes, strict=True):
            parts.append(self._block(packed[start : start + n_packed], n_bytes, stream.what))
            start += n_packed
        return b"".join(parts)

    def _block(self, packed: memoryview, n_bytes: int, what: str) -> bytes:
        try:
            unpack = zlib.decompressobj() if self.compressor == _ZLIB else lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
            # One byte more than announced is enough to see that there are more.
            block = unpack.decompress(packed, n_bytes + 1)
        except (zlib.error, lzma.LZMAError) as error:
            raise InputError(f"{what}: can't be decompressed ({error}): the file is damaged") from None
        if len(block) != n_bytes:
            raise InputError(
                f"{what}: a compressed block does not hold the {n_bytes} bytes it announces: the file is damaged"
            )
        return block


@dataclass(frozen=True)
class _Stream:
    """Bytes from a place on, as they are or in base64."""

    content: bytes
    start: int
    is_raw: bool
    what: str

    def check_room(self, n_bytes: int):
        if self._encoded(n_bytes) > len(self.content) - self.start:
            raise InputError(f"{self.what}: says {n_bytes} bytes, more than the file holds: it was cut short")

    def read(self, n_bytes: int) -> bytes:
        self.check_room(n_bytes)
        encoded = self.content[self.start : self.start + self._encoded(n_bytes)]
        if self.is_raw:
            return encoded
        try:
            content = a2b_base64(encoded, strict_mode=True)
        except Base64Error as error:
            raise InputError(f"{self.what}: not valid base64 ({error}): the file is damaged") from None
        if len(content) < n_bytes:
            raise InputError(f"{self.what}: says {n_bytes} bytes, but {len(content)} follow: the file is damaged")
        return content[:n_bytes]

    def after(self, n_bytes: int) -> "_Stream":
        """What follows so many bytes that were encoded on their own."""
        return _Stream(self.content, self.start + self._encoded(n_bytes), self.is_raw, self.what)

    def is_padded_after(self, n_bytes: int) -> bool:
        """True if so many bytes were encoded on their own: some writers close base64 after the byte count."""
        end = self.start + self._encoded(n_bytes)
        padding = b"=" * (-n_bytes % 3)
        return not self.is_raw and self.content[end - len(padding) : end] == padding

    def _encoded(self, n_bytes: int) -> int:
        return n_bytes if self.is_raw else -(-n_bytes // 3) * 4


def _tag_end(content: bytes, start: int) -> int:
    """Where the tag that starts here ends: a > may stand within quotes."""
    place, quote = start, b""
    while place < len(content):
        byte = content[place : place + 1]
        if quote:
            quote = b"" if byte == quote else quote
        elif byte in (b'"', b"'"):
            quote = byte
        elif byte == b">":
            break
        place += 1
    return place


def _ascii(text: str, what: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise InputError(f"{what}: holds characters that are neither numbers nor base64: the file is damaged") from None
