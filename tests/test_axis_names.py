import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {"Float", "Int", "Bool", "Complex", "Num", "Real", "Shaped"}


def axis_names(source: str) -> Iterator[str]:
    """Axes of every Float[..., "these"] in the source; numbers are left out."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[_, ast.Constant(value=str(shape))])):
                if kind in KINDS:
                    yield from (axis for axis in shape.split() if not axis.isdigit())


def test_axes_are_found_in_annotations():
    found = axis_names('def f(x: Float[Tensor, "batch 3 node"] | None) -> Int[Tensor, " mode"]: ...')
    assert set(found) == {"batch", "node", "mode"}


def test_axes_have_the_names_of_the_style_guide_and_no_name_there_is_unused():
    rows = [line for line in (ROOT / "docs/style.md").read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    used: dict[str, str] = {}
    for path in sorted((ROOT / "gfunk").rglob("*.py")):
        used |= {axis: path.name for axis in axis_names(path.read_text())}
    assert set(used) - listed == set(), {axis: used[axis] for axis in set(used) - listed}
    assert listed - set(used) == set()
