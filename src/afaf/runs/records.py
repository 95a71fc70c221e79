"""Checks a result record: a line of results/ or the results.json of a run folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Set
from typing import Any

LARGEST = sys.float_info.max  # JSON has whole numbers beyond it, which nothing can be computed with


class UnfinishedLine(UserWarning):
    """A line that a killed process left behind."""


def what_is_wrong(line: Any, needed: Set[str]) -> str:
    """Why this is no result of a run, a line here or the results.json of a run folder; nothing where it is one."""
    if not isinstance(line, dict):
        return "it holds no table"
    missing = needed - set(line)
    if missing:
        return f"it lacks {', '.join(sorted(missing))}"
    for must_be, (fits, names) in FIELDS.items():
        for name in names:
            if name in line and not fits(line[name]):
                return f"{name} must be {must_be}, not {shortened(line[name])}"
    return ""


def shortened(value: Any, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]} ..."


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST  # true is no number


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _is_measured(value: Any) -> bool:
    return value is None or _is_number(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


METRICS = (
    "acc",
    "bwt",
    "la",
    "acc_task_il",
    "acc_task_il_unmasked",
    "bwt_task_il",
    "forgetting",
    "forward_transfer",
    "average_incremental_accuracy",
    "task_id_accuracy",
)
FIELDS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    "text": (
        is_text,
        ("stream", "method", "failed", "kind", "device", "engine", "precision", "ended", "commit", "afaf", "torch", "python", "run"),
    ),
    "a table": (_is_table, ("settings", "kept")),
    "a table or null": (lambda value: value is None or _is_table(value), ("costs",)),
    "a whole number": (_is_whole, ("seed", "params", "dense_params", "jobs_at_once", "shared_tasks")),
    "a number": (_is_number, ("seconds", "seconds_learning")),
    "a number or null": (_is_measured, METRICS),
    "a list of numbers or null": (_list_of(_is_measured), ("task_id", "before")),
    "a list of lists of numbers or null": (_list_of(_list_of(_is_measured)), ("R", "R_task_il", "R_task_il_unmasked")),
    "a list of lists of whole numbers": (_list_of(_list_of(_is_whole)), ("confusion",)),
    "a list of texts": (_list_of(is_text), ("warnings",)),
    "a list of lists of texts": (_list_of(_list_of(is_text)), ("class_names",)),
}
