"""openCARP's .igb: values in time at every node, as simulations write them."""

import re
import zlib
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from gfunk.errors import InputError
from gfunk.files.tables import readable
from gfunk.store import write_bytes

HEADER_BYTES = 1024

# Type in the file and numbers a node. `long` was 4 bytes once: see _item_type.
TYPES = {
    "byte": ("u1", 1), "char": ("i1", 1), "short": ("i2", 1), "int": ("i4", 1), "uint": ("u4", 1), "long": ("i8", 1),
    "float": ("f4", 1), "double": ("f8", 1),
    "vec3f": ("f4", 3), "vec4f": ("f4", 4), "vec9f": ("f4", 9), "vec3d": ("f8", 3), "vec4d": ("f8", 4), "vec9d": ("f8", 9),
}  # fmt: skip
BYTE_ORDERS = {"little_endian": "<", "big_endian": ">"}
MS_PER_UNIT = {"ms": 1.0, "s": 1000.0, "us": 0.001}

# A gzipped file may claim this many times its size, or this many bytes: rest at one voltage packs well, bombs better.
MAX_PACKING = 100
MAX_SMALL_BYTES = 64 * 2**20
# Of a damaged one, all is read but the piece with the damage.
PIECE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Igb:
    """Values in the file's unit; those of a vector type have its components last."""

    values: Float[np.ndarray, "time node"] | Float[np.ndarray, "time node channel"]
    times_ms: Float[np.ndarray, " time"]
    unit: str
    is_truncated: bool = False
    # What the reader saw and passed over: one line each, for the user.
    remarks: tuple[str, ...] = ()


def read_igb(path: Path) -> Igb:
    """The whole frames of a file, gzipped or not; a killed run's has fewer than its header says."""
    with readable(path), path.open("rb") as file:
        n_file_bytes = path.stat().st_size
        is_zipped = file.read(2) == b"\x1f\x8b"
        head = _start(file, HEADER_BYTES, is_zipped)
        header = _header(path, head)
        n_claimed = HEADER_BYTES + header.n_frames * header.n_frame_bytes
        if is_zipped and n_claimed > max(MAX_PACKING * n_file_bytes, MAX_SMALL_BYTES):
            raise InputError(f"{path}: claims {n_claimed} bytes from {n_file_bytes} gzipped: gunzip it, and read that")
        # Never more than is there, whatever is claimed; one byte more shows a file longer than its claim.
        content = _start(file, n_claimed + 1 if is_zipped else min(n_claimed + 1, n_file_bytes), is_zipped)
    return _frames(path, header, content)


def write_igb(path: Path, values: Float[np.ndarray, "time node"], times_ms: Float[np.ndarray, " time"], unit: str = "mV"):
    """Write values at evenly spaced times, whole or not at all; single or double precision, as they come."""
    if not values.size or len(values) != len(times_ms):
        raise InputError(
            f"{path}: {values.shape[0]} frames of {values.shape[1]} nodes at {len(times_ms)} times can't be written"
        )
    if not re.fullmatch(r"[!-~]{1,40}", unit) or set(unit) & set(":,;#*"):
        raise InputError(f"{path}: the unit {unit!r} can't stand in a header: up to 40 letters without spaces")
    step_ms = _even_step_ms(path, times_ms)
    dtype, name = ("<f4", "float") if values.dtype.itemsize <= 4 else ("<f8", "double")
    # Lines of at most 80 characters and a form feed at the end: openCARP's own reader asks for both.
    text = (
        f"x:{values.shape[1]} y:1 z:1 t:{len(values)} type:{name} systeme:little_endian\r\n"
        f"org_t:{float(times_ms[0])!r}\r\n"
        f"dim_t:{float(times_ms[-1] - times_ms[0])!r}\r\n"
        f"inc_t:{step_ms!r}\r\n"
        f"unites_x:um unites_y:um unites_z:um unites_t:ms\r\n"
        f"unites:{unit}\r\n"
    ).encode()
    blank_lines = (b" " * 70 + b"\r\n") * 15
    head = (text + blank_lines)[: HEADER_BYTES - 1] + b"\f"
    write_bytes(path, head + values.astype(dtype).tobytes())


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What the header says, checked; the step is None where it says nothing."""

    n_nodes: int
    n_frames: int
    type: str
    byte_order: str
    start_ms: float
    step_ms: float | None
    factor: float
    zero: float
    unit: str
    remarks: tuple[str, ...]

    @property
    def n_frame_bytes(self) -> int:
        dtype, n_numbers = TYPES[self.type]
        return self.n_nodes * n_numbers * np.dtype(dtype).itemsize


def _start(file: BinaryIO, n_bytes: int, is_zipped: bool) -> bytes:
    """The first bytes of what a file holds, fewer where it ends or is damaged."""
    file.seek(0)
    if not is_zipped:
        return file.read(n_bytes)
    content = bytearray()
    unzip = zlib.decompressobj(wbits=31)
    packed = file.read(PIECE_BYTES)
    while packed and len(content) < n_bytes:
        try:
            content += unzip.decompress(packed, n_bytes - len(content))
        except zlib.error:
            break
        packed = unzip.unconsumed_tail
        if unzip.eof:
            # Gzipped files may be joined end to end.
            packed, unzip = unzip.unused_data, zlib.decompressobj(wbits=31)
        packed = packed or file.read(PIECE_BYTES)
    return bytes(content)


def _header(path: Path, head: bytes) -> _Header:
    text = re.sub(r"[#*][^\r\n]*", "", head.decode("latin-1"))
    pairs = [word.split(":", 1) for word in re.split(r"[\s\0,;]+", text) if ":" in word]
    words = {key.lower(): word for key, word in pairs}
    if len(head) < HEADER_BYTES or "x" not in words or "type" not in words:
        raise InputError(f"{path}: not an .igb: no header of {HEADER_BYTES} bytes with x: and type:, or it was cut short")
    n_x, n_y, n_z, n_frames = (_whole(path, words, key) for key in "xyzt")
    kind, order = words["type"].lower(), words.get("systeme", "little_endian").lower()
    if kind not in TYPES:
        raise InputError(f"{path}, header: type {kind[:20]!a} is not one of {', '.join(TYPES)}")
    if order not in BYTE_ORDERS:
        raise InputError(f"{path}, header: systeme {order[:20]!a} is not one of {', '.join(BYTE_ORDERS)}")
    unit_t = words.get("unites_t", "ms")
    ms = MS_PER_UNIT.get(unit_t.lower(), 1.0)
    factor = _real(path, words, "facteur", 1.0)
    if factor == 0:
        raise InputError(f"{path}, header: facteur is 0, and values are divided by it")
    step = _step(path, words, n_frames)
    remarks = [
        remark
        for is_so, remark in (
            ("systeme" not in words, f"{path}: no byte order in the header: taken as little endian"),
            (step is None and n_frames > 1, f"{path}: no time step in the header: taken as 1 ms"),
            (unit_t.lower() not in MS_PER_UNIT, f"{path}: unit of time {unit_t[:20]!a} unknown: taken as ms"),
        )
        if is_so
    ]
    return _Header(
        n_nodes=n_x * n_y * n_z,
        n_frames=n_frames,
        type=kind,
        byte_order=BYTE_ORDERS[order],
        start_ms=ms * _real(path, words, "org_t", 0.0),
        step_ms=None if step is None else ms * step,
        factor=factor,
        zero=_real(path, words, "zero", 0.0),
        unit=words.get("unites", ""),
        remarks=tuple(remarks),
    )


def _whole(path: Path, words: dict[str, str], key: str) -> int:
    word = words.get(key, "1")
    if not re.fullmatch(r"\+?[0-9]{1,15}", word) or int(word) == 0:
        raise InputError(f"{path}, header: {key}:{word[:20]!a} is not a number of {'frames' if key == 't' else 'nodes'}")
    return int(word)


def _real(path: Path, words: dict[str, str], key: str, default: float) -> float:
    try:
        number = float(words.get(key, default))
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise InputError(f"{path}, header: {key}:{words[key][:20]!a} is not a finite number")
    return number


def _step(path: Path, words: dict[str, str], n_frames: int) -> float | None:
    """Time between frames, as inc_t or as the whole dim_t; None where the header has neither."""
    inc_t, dim_t = _real(path, words, "inc_t", 0.0), _real(path, words, "dim_t", 0.0)
    step = inc_t if inc_t > 0 else dim_t / max(n_frames - 1, 1)
    if n_frames > 1 and step <= 0 and words.keys() & {"inc_t", "dim_t"}:
        raise InputError(f"{path}, header: inc_t {inc_t:g} and dim_t {dim_t:g} give no time between frames")
    return step if step > 0 else None


def _item_type(header: _Header, n_bytes: int) -> np.dtype:
    """The type of one number. A `long` is 4 bytes where the size of the whole file says so: 32-bit machines wrote those."""
    dtype, n_numbers = TYPES[header.type]
    if header.type == "long" and n_bytes == header.n_frames * header.n_nodes * n_numbers * 4:
        dtype = "i4"
    return np.dtype(header.byte_order + dtype)


def _frames(path: Path, header: _Header, content: bytes) -> Igb:
    # Damage to a gzipped file may take the header too, the second time, when more of it is unpacked at once.
    n_bytes = max(len(content) - HEADER_BYTES, 0)
    dtype, n_numbers = _item_type(header, n_bytes), TYPES[header.type][1]
    n_frame_numbers = header.n_nodes * n_numbers
    n_frames = min(n_bytes // (n_frame_numbers * dtype.itemsize), header.n_frames)
    if not n_frames:
        raise InputError(
            f"{path}: not one whole frame of {header.n_nodes} {header.type} is there ({n_bytes} bytes after the header)"
        )
    raw = np.frombuffer(content, dtype, count=n_frames * n_frame_numbers, offset=HEADER_BYTES)
    # Any bits may stand in a file; what they give is the user's to see, not a warning.
    with np.errstate(all="ignore"):
        values = raw.astype(np.float32 if dtype.str[1:] == "f4" else np.float64)
        if header.factor != 1 or header.zero != 0:
            # Divided, as openCARP's and meshalyzer's IGBheader do.
            values = values.astype(np.float64) / header.factor + header.zero
    shape = (n_frames, header.n_nodes) if n_numbers == 1 else (n_frames, header.n_nodes, n_numbers)
    times_ms = header.start_ms + (header.step_ms or 1.0) * np.arange(n_frames)
    remarks = list(header.remarks)
    if n_frames < header.n_frames:
        remarks.append(f"{path}: cut short: {n_frames} whole frames of the {header.n_frames} its header says")
    elif n_bytes > n_frames * n_frame_numbers * dtype.itemsize:
        remarks.append(f"{path}: longer than its header says: what follows frame {n_frames} is left out")
    return Igb(
        values=values.reshape(shape),
        times_ms=times_ms,
        unit=header.unit,
        is_truncated=n_frames < header.n_frames,
        remarks=tuple(remarks),
    )


def _even_step_ms(path: Path, times_ms: Float[np.ndarray, " time"]) -> float:
    if not np.isfinite(times_ms).all():
        raise InputError(f"{path}: a time is not finite")
    if len(times_ms) == 1:
        return 1.0
    step_ms = float(times_ms[-1] - times_ms[0]) / (len(times_ms) - 1)
    uneven = np.abs(times_ms - (times_ms[0] + step_ms * np.arange(len(times_ms)))).max()
    # Room for times in single precision.
    if step_ms <= 0 or uneven > 1e-3 * step_ms:
        raise InputError(f"{path}: an .igb holds evenly spaced times; these are off by up to {uneven:.3g} ms")
    return step_ms
