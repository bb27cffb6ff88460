"""What is refused at once, not after the work."""

import os
from pathlib import Path

from gfunk.errors import InputError


def check_writable(path: Path):
    """A file can be written there; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror})") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: can't be written: it is a folder, or lies in one that is not yours")
