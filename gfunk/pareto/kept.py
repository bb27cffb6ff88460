"""What a comparison has measured so far, in a folder: killed and called again, it goes on where it was."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gfunk.errors import InputError
from gfunk.pareto.frontier import Cost, Method
from gfunk.pareto.operators import Contender
from gfunk.pareto.study import Waves
from gfunk.settings import from_json, to_json
from gfunk.store import check_terms, commit, fingerprint, read_arrays, read_json, write_arrays, write_json


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The folder of a comparison; without one all is measured, and nothing kept."""

    folder: Path | None

    def true(self, solved: Callable[[], Waves]) -> Waves:
        if self.folder is None:
            return solved()
        path = self.folder / "truth.safetensors"
        if not path.exists():
            write_arrays(path, {str(number): waves for number, waves in enumerate(solved())})
        arrays, _ = read_arrays(path)
        return [arrays[str(number)] for number in range(len(arrays))]

    def method(self, name: str, measured: Callable[[], Method], of: str = "") -> Method:
        """of: what tells it from others of its name."""
        if self.folder is None:
            return measured()
        path = self.folder / (re.sub(r"[^\w.-]+", "-", f"{name} {of[:8]}").strip("-") + ".json")
        if not path.exists():
            write_json(path, to_json(measured()))
        try:
            return from_json(read_json(path), (Method, Cost))
        except (InputError, TypeError) as error:
            raise InputError(f"{path}: {error}; delete it, and it is measured again") from error


NOWHERE = Kept(folder=None)


def kept_in(folder: Path, **terms: object) -> Kept:
    """What is there must have been measured on the same terms, by the same code."""
    path, terms = folder / "comparison.json", terms | {"commit": commit()}
    check_terms(path, terms)
    write_json(path, terms)
    return Kept(folder=folder)


def identity(contender: Contender) -> str:
    weights = {name: each.detach().cpu().numpy() for name, each in contender.operator.state_dict().items()}
    return fingerprint(weights, variant=to_json(contender.variant), problem=to_json(contender.problem))
