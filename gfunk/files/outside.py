"""Readers of other packages: asked for by name where they are missing; whatever goes wrong in one is a line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path

from gfunk.errors import InputError


@contextmanager
def read_by(package: str, path: Path) -> Iterator[None]:
    """Within it the package may be imported and used; an InputError gets the file's name in front."""
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            # Text or numbers that are none: NumPy goes on with what it has.
            warnings.simplefilter("error", RuntimeWarning)
            warnings.filterwarnings("error", "string or file could not be read", DeprecationWarning)
            yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        wanted = "'gfunk[meshes]'" if missing == package else missing
        raise InputError(f"{path}: reading it needs {missing}: pip install {wanted}") from error
    except Exception as error:
        # Of any kind: what these packages raise on a damaged file is written down nowhere.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path}: {package} can't read it ({reason}): the file is damaged, or of an unusual kind") from None
