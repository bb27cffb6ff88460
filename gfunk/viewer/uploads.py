"""Files from a visitor's disk, stored under names of ours: only the ending is his, and only if a reader knows it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gfunk.errors import InputError
from gfunk.files.reading import READERS

# Beside the mesh itself.
COMPANIONS = (".lon", ".blon")
MAIN = tuple(sorted(suffix for suffix in READERS if suffix))
MOST_PARTS = 3  # points, elements and fibres


@dataclass(frozen=True)
class Part:
    """One of the files that follow one another in an upload."""

    suffix: str
    n_bytes: int


def announced_parts(text: str, most_bytes: int) -> list[Part]:
    """What an upload says of itself, such as `.pts:1234,.elem:567`, if it may come."""
    parts = []
    for word in text.split(","):
        suffix, _, size = word.strip().lower().rpartition(":")
        if not (size.isascii() and size.isdecimal() and len(size) < 16):
            raise InputError("an upload must say its files' endings and sizes")
        if suffix not in (*MAIN, *COMPANIONS):
            raise InputError(f"no reader for files ending in {suffix[:20]!r}: bring one of {', '.join(MAIN)}")
        parts.append(Part(suffix, int(size)))
    suffixes = [part.suffix for part in parts]
    if len(parts) > MOST_PARTS or len(set(suffixes)) < len(suffixes):
        raise InputError("one mesh at a time: a single file, or openCARP's .pts, .elem and .lon together")
    total = sum(part.n_bytes for part in parts)
    if total > most_bytes:
        raise InputError(f"{total / 1e6:,.4g} MB is too much: the limit is {most_bytes / 1e6:,.4g} MB")
    for one, other in ((".pts", ".elem"), (".elem", ".pts"), (".bpts", ".belem"), (".belem", ".bpts")):
        if one in suffixes and other not in suffixes:
            raise InputError(f"openCARP's {one} alone is half a mesh: drop the {other} of it too (and the .lon, for fibres)")
    if not any(part.suffix in MAIN for part in parts):
        raise InputError("fibres without a mesh: drop the .pts and .elem too")
    if len({_family(suffix) for suffix in suffixes}) > 1:
        raise InputError("files of different formats: drop one mesh at a time")
    return parts


async def stored(chunks: AsyncIterator[bytes], parts: Sequence[Part], folder: Path) -> Path:
    """Write the parts, which follow one another, as mesh.SUFFIX; the path a reader is to be given."""
    rest = b""
    for part in parts:
        left = part.n_bytes
        with (folder / f"mesh{part.suffix}").open("xb") as file:
            while left:
                rest = rest or await anext(chunks, b"")
                if not rest:
                    raise InputError("the upload broke off: try again")
                file.write(rest[:left])
                rest, left = rest[left:], left - min(left, len(rest))
    if rest or await anext(chunks, b""):
        raise InputError("the upload is longer than it said: try again")
    return folder / f"mesh{next(part.suffix for part in parts if part.suffix in MAIN)}"


def _family(suffix: str) -> str:
    openCARP = {".pts": "text", ".elem": "text", ".lon": "text", ".bpts": "binary", ".belem": "binary", ".blon": "binary"}
    return openCARP.get(suffix, suffix)
