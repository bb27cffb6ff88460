"""What people see: tables, or JSON for machines, on stdout; progress with the time left on stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

people = Console(stderr=True)


def show(as_json: bool, content: Any, rows: list[dict[str, Any]], columns: list[str] | None = None):
    """JSON for machines, a table for people."""
    if as_json:
        print(json.dumps(finite(content)))
        return
    columns = columns or list(rows[0]) if rows else columns or []
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def finite(content: Any) -> Any:
    """JSON knows neither NaN nor infinity: null stands for them."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def progress_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=people, transient=True,
        disable=not people.is_terminal,
    )  # fmt: skip


@contextmanager
def bar(about: str, total: int | None) -> Iterator[Any]:
    """A bar with the time left; calling what it gives moves it on, optionally saying something new."""
    with progress_bars() as progress:
        task: TaskID = progress.add_task(about, total=total)

        def advance(said: str | None = None):
            progress.update(task, advance=1, description=said or about)

        yield advance
