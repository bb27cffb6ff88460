"""Frozen settings records to JSON and back, and `key=value` overrides of them."""

import ast
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from gfunk.errors import InputError

Record = TypeVar("Record")


def to_json(record: Any) -> Any:
    """A record as plain JSON; `is` names its class."""
    if is_dataclass(record) and not isinstance(record, type):
        return {"is": type(record).__name__} | {field.name: to_json(getattr(record, field.name)) for field in fields(record)}
    if isinstance(record, (tuple, list)):
        return [to_json(item) for item in record]
    return record


def from_json(content: Any, classes: Iterable[type]) -> Any:
    """The record that `to_json` wrote, if its class is one of those allowed."""
    if isinstance(content, list):
        return tuple(from_json(item, classes) for item in content)
    if not isinstance(content, dict):
        return content
    known = {each.__name__: each for each in classes}
    kind = content.get("is")
    if kind not in known:
        raise InputError(f"settings of an unknown kind {kind!r}; known are {', '.join(sorted(known))}")
    values = {name: from_json(value, classes) for name, value in content.items() if name != "is"}
    names = {field.name for field in fields(known[kind])}
    if unknown := sorted(values.keys() - names):
        raise InputError(f"{kind} has no setting {unknown[0]!r}; it has {', '.join(sorted(names))}")
    return known[kind](**values)


def with_overrides(record: Record, overrides: Iterable[str]) -> Record:
    """The record with settings such as `training.epochs=3` replaced; unknown keys and wrong types are refused."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--set {override}: write it as key=value")
        record = _replaced(record, key.strip().split("."), text.strip(), override)
    return record


def _replaced(record: Any, path: list[str], text: str, override: str) -> Any:
    names = [field.name for field in fields(record)]
    if path[0] not in names:
        raise InputError(f"--set {override}: no setting {path[0]!r} here; there are {', '.join(names)}")
    old = getattr(record, path[0])
    if len(path) > 1 or is_dataclass(old):
        if not is_dataclass(old):
            raise InputError(f"--set {override}: {path[0]} is a plain value")
        if len(path) == 1:
            inner = ", ".join(f"{path[0]}.{field.name}" for field in fields(old))
            raise InputError(f"--set {override}: set one of {inner}")
        return replace(record, **{path[0]: _replaced(old, path[1:], text, override)})
    return replace(record, **{path[0]: _parsed(text, old, override)})


def _parsed(text: str, old: Any, override: str) -> Any:
    """The text as a value of the old one's type."""
    if isinstance(old, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise InputError(f"--set {override}: {text!r} is not a value (now {old!r})") from None
    if isinstance(old, tuple) and isinstance(value, (list, tuple)):
        return tuple(tuple(item) if isinstance(item, (list, tuple)) else item for item in value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if old is None or value is None or type(value) is type(old):
        return value
    raise InputError(f"--set {override}: {type(old).__name__} expected (now {old!r}), not {type(value).__name__}")
