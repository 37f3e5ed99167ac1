"""Dataclasses from a stranger's JSON: every field known, none missing, each of the type that the dataclass states.

Standard library only.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from recpipe.untrusted import MAX_INTEGER, Value

T = TypeVar("T")


def record(value: Value, kind: type[T], low: int = 0, high: int = MAX_INTEGER) -> T:
    """An instance of a dataclass.

    Args:
        value: an object of the file.
        kind: the dataclass; its fields are numbers, texts, flags, lists, tuples, mappings and dataclasses of these.
        low, high: the range of integers.

    Raises:
        RecpipeError: of the file's kind; a field is unknown, missing or of another type.
    """
    hints = get_type_hints(kind)
    all_fields = fields(kind)  # type: ignore[arg-type]
    needed = [f.name for f in all_fields if f.default is MISSING and f.default_factory is MISSING]
    found = value.fields(needed, hints)
    return kind(**{name: _read(one, hints[name], low, high) for name, one in found.items()})


def _read(value: Value, hint: Any, low: int, high: int) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return value.raw
    if hint is int:
        return value.integer(low, high)
    if hint is float:
        return value.number()
    if hint is str:
        return value.text()
    if hint is bool:
        return value.flag()
    if is_dataclass(hint) and isinstance(hint, type):
        return record(value, hint, low, high)
    if origin in (Union, types.UnionType):
        wanted = next(one for one in inner if one is not types.NoneType)
        return None if value.raw is None else _read(value, wanted, low, high)
    if origin in (dict, Mapping):
        return {name: _read(one, inner[1], low, high) for name, one in value.fields().items()}
    return _sequence(value, origin, inner, low, high)


def _sequence(value: Value, origin: Any, inner: tuple[Any, ...], low: int, high: int) -> Any:
    """A list, or a tuple of any or of a stated number of elements."""
    if origin is tuple and inner[-1] is not Ellipsis:
        pairs = zip(value.items(len(inner)), inner, strict=True)
        return tuple(_read(one, hint, low, high) for one, hint in pairs)
    return origin(_read(one, inner[0], low, high) for one in value.items())
