"""Frozen settings records to JSON and back, and `key=value` overrides of them."""

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
    try:
        return replace(record, **{path[0]: _parsed(text, get_type_hints(type(record))[path[0]])})
    except TypeError as error:
        raise InputError(f"--set {override}: {error} (now {old!r})") from None


def _parsed(text: str, hint: Any) -> Any:
    """The text as a value of the hinted type: a Python literal, or a string without its quotes."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _fitted(text, hint)
    try:
        return _fitted(value, hint)
    except TypeError as error:
        try:
            return _fitted(text, hint)
        except TypeError:
            raise error from None


def _fitted(value: Any, hint: Any) -> Any:
    """The value as the hinted type, whole numbers made floats and lists tuples where they should be; or TypeError."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        for each in inner:
            with suppress(TypeError):
                return _fitted(value, each)
    elif kind is tuple and isinstance(value, (tuple, list)):
        hints = [inner[0]] * len(value) if inner[-1] is ... else inner
        if len(hints) == len(value):
            return tuple(_fitted(item, each) for item, each in zip(value, hints, strict=True))
    elif (kind is Literal and value in inner) or type(value) is hint:
        return value
    elif hint is float and type(value) is int:
        return float(value)
    raise TypeError(f"{_in_words(hint)} expected, not {type(value).__name__} {value!r}")


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint)
