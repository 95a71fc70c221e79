"""The fields of a dataclass of settings in words: type, default, and the comment beside the field in its source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from afaf.bounds import Within
from afaf.checked import WORDS


@dataclass(frozen=True)
class Described:
    name: str
    values: str  # the allowed values
    default: str  # as written after `--set name=`
    text: str  # empty if the field has no comment or there is no source


def described(settings: type[Any]) -> list[Described]:
    """The fields of a dataclass, those it inherits first."""
    hints, texts = typing.get_type_hints(settings, include_extras=True), _comments(settings)
    return [Described(f.name, in_words(hints[f.name]), _default(f), texts.get(f.name, "")) for f in dataclasses.fields(settings)]


def in_words(kind: Any) -> str:
    """The allowed values of a type, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = ", ".join(str(mark) for mark in arguments[1:] if isinstance(mark, Within))
        return f"{in_words(arguments[0])}, {bounds}" if bounds else in_words(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(in_words, arguments))
    return WORDS.get(origin or kind) or ("a table" if origin is dict else str(kind))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return "must be given"
    if isinstance(value, str):
        return value or '""'
    return "none" if value is None else json.dumps(value, default=str)


def _comments(settings: type[Any]) -> dict[str, str]:
    """The comment behind each field, which may continue on further lines, from the nearest class that has one."""
    texts: dict[str, str] = {}
    for kind in reversed(settings.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except (OSError, TypeError):  # built in, or installed without its source
            continue
        lines, body = source.splitlines(), typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
        for node in body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                last = node.end_lineno or node.lineno
                behind = lines[last - 1].encode()[node.end_col_offset :].decode()
                more = itertools.takewhile(lambda line: line.startswith("#"), map(str.strip, lines[last:]))
                if "#" in behind:
                    texts[node.target.id] = " ".join(line.partition("#")[2].strip() for line in (behind, *more))
    return texts
