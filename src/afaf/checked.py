"""Plain data (JSON, TOML, keyword arguments) as typed dataclasses. Settings, experiments, results and explanations are all checked here.

Types, choices (`Literal`) and bounds (`Annotated`, see `afaf.bounds`) are stated in the annotations. An error names the field, the
expected and the given value, and the nearest name for an unknown key. pydantic and msgspec do not give these messages and would add a
dependency for little.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from afaf.bounds import Within, check_bounds, shown
from afaf.errors import ConfigError, unknown

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none", list: "a list", tuple: "a list"}
Check = Callable[[Any, str], Any]


class NotEmpty:
    """In `Annotated`: a list or table with at least one entry."""


@dataclasses.dataclass(frozen=True)
class Shorthand:
    """In `Annotated`: a value that is not a table stands for a table with this one key."""

    key: str


class MismatchError(ConfigError):
    """A value that does not have the annotated type; `where` is its place."""

    def __init__(self, where: str, message: str):
        super().__init__(f"{where} {message}" if where else message)
        self.where = where


def build(kind: Any, value: Any, where: str = "") -> Any:
    """Return `value` as the annotated type, or raise ConfigError that names its place below `where`."""
    return _check_for(kind)(value, where)


def _check_for(kind: Any) -> Check:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin is Literal:
        return functools.partial(_literal, arguments)
    if origin in (list, tuple):
        return _list(origin, arguments[0])
    if origin is dict:
        return _table(_check_for(arguments[1]))
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_union, arguments, [_check_for(one) for one in arguments if one is not type(None)])
    return functools.partial(_scalar, kind, Within())


def check_fields(made: Any) -> None:
    """For the `__post_init__` of a dataclass that is written in code: its fields become their annotated types, like those of read data."""
    kind: Any = type(made)
    for name, check in _checks_of_fields(kind).items():
        object.__setattr__(made, name, check(getattr(made, name), _join(kind.__name__, name)))  # it may be frozen


@functools.cache
def _checks_of_fields(kind: Any) -> dict[str, Check]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: _check_for(hints[f.name]) for f in dataclasses.fields(kind)}


@functools.cache
def _dataclass(kind: Any) -> Check:
    fields, checks = {f.name: f for f in dataclasses.fields(kind)}, _checks_of_fields(kind)
    required = [name for name, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]

    def check(value: Any, where: str) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise _mismatch(where, "a table", value)
        for name in value:
            if name not in fields:
                raise MismatchError("", unknown("key", _join(where, name), [_join(where, field) for field in fields]))
        missing = [name for name in required if name not in value]
        if missing:
            raise MismatchError(where or "it", f"lacks {', '.join(missing)}")
        return kind(**{name: checks[name](entry, _join(where, name)) for name, entry in value.items()})

    return check


def _annotated(kind: Any, marks: tuple[Any, ...]) -> Check:
    bounds = next((mark for mark in marks if isinstance(mark, Within)), None)
    inner = _check_for(kind) if bounds is None else functools.partial(_scalar, kind, bounds)
    shorthand = next((mark for mark in marks if isinstance(mark, Shorthand)), None)

    def check(value: Any, where: str) -> Any:
        if shorthand is not None and not isinstance(value, Mapping):
            value = {shorthand.key: value}
        checked = inner(value, where)
        if NotEmpty in marks and not checked:
            raise MismatchError(where, "must have at least one entry")
        return checked

    return check


def _literal(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        raise MismatchError("", unknown(f"value of {where}", shown(value).strip("'"), map(str, choices)))
    return value


def _list(kind: Any, argument: Any) -> Check:
    item, (types_of_items, bounds) = _check_for(argument), _numbers(argument)

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, (tuple, list)):
            hint = f" of tables, each headed [[{where}]]" if isinstance(value, Mapping) else ""
            raise _mismatch(where, f"a list{hint}", value)
        if types_of_items.issuperset(map(type, value)) and all(one is None or bounds.holds(one) for one in value):
            return kind(value)  # a fast path for long lists of numbers
        return kind([item(entry, f"{where}[{i}]") for i, entry in enumerate(value)])

    return check


def _numbers(kind: Any) -> tuple[set[type], Within]:
    """The types and explicit bounds of a number that may be None; no types for other annotations."""
    parts = [one for one in typing.get_args(kind) if one is not type(None)] if typing.get_origin(kind) is not Annotated else [kind]
    marks = typing.get_args(parts[0])[1:] if len(parts) == 1 else ()
    if not marks or not isinstance(marks[0], Within) or math.isinf(marks[0].high - marks[0].low):
        return set(), Within()
    return {typing.get_args(parts[0])[0], *({type(None)} if parts != [kind] else ())}, marks[0]


def _table(entry: Check) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _mismatch(where, "a table", value)
        return {name: entry(one, _join(where, name)) for name, one in value.items()}

    return check


def _union(kinds: tuple[Any, ...], checks: list[Check], value: Any, where: str) -> Any:
    """The first type that the value fits; "none" stands for None, which TOML does not have."""
    if type(None) in kinds and (value is None or value == "none"):
        return None
    errors = []
    for check in checks:
        try:
            return check(value, where)
        except MismatchError as error:
            errors.append(error)
    specific = [error for error in errors if error.where != where]  # in an entry of a list or table, or among choices
    raise specific[-1] if specific else _mismatch(where, " or ".join(dict.fromkeys(map(_words, kinds))), value)


def _scalar(kind: Any, bounds: Within, value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is int and kind is float:
        check_bounds(value, bounds, where)
        return float(value)
    if type(value) is not kind:
        raise _mismatch(where, _words(kind), value)
    if kind in (int, float):
        check_bounds(value, bounds, where)
    return value


def _words(kind: Any) -> str:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return WORDS.get(typing.get_origin(kind) or kind) or ("a table" if typing.get_origin(kind) is dict else str(kind))


def _mismatch(where: str, expected: str, value: Any) -> MismatchError:
    return MismatchError(where, f"must be {expected}, not {shown(value)}")


def _join(where: str, name: Any) -> str:
    return f"{where}.{name}" if where else str(name)
