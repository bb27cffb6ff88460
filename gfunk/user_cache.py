"""A folder of the user's where what takes long to find is kept, up to a size."""

import os
from pathlib import Path

import numpy as np

MOST_CACHED_BYTES = 2 * 10**9


def user_cache() -> Path:
    """GFUNK_CACHE, or `gfunk` in the user's folder for such things."""
    if os.environ.get("GFUNK_CACHE"):
        return Path(os.environ["GFUNK_CACHE"])
    usual = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
    return Path(usual) / "gfunk" if usual else Path.home() / ".cache" / "gfunk"


def usable_cache(folder: Path) -> Path | None:
    """The folder, if one can write there: without a cache all takes longer, but nothing fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def trim_cache(folder: Path, most_bytes: int = MOST_CACHED_BYTES):
    """Remove the oldest files until all others take no more than this."""
    files = sorted(folder.glob("*/*.safetensors"), key=lambda path: -path.stat().st_mtime)
    total = np.cumsum([path.stat().st_size for path in files])
    for path in (path for path, size in zip(files, total, strict=True) if size > most_bytes):
        path.unlink(missing_ok=True)
