"""Plain data becomes typed dataclasses, or an error that names the place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from afaf.bounds import Count, Percent, Within
from afaf.checked import NotEmpty, Shorthand, build, check_fields
from afaf.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    count: Count
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    share: Percent = 0.0
    mode: Literal["fast", "exact"] = "fast"
    either: Annotated[float, Within(0)] | Literal["auto"] | None = None
    rows: list[list[float | None]] = field(default_factory=list)
    names: Annotated[list[str], NotEmpty] = field(default_factory=lambda: ["a"])
    table: Annotated[dict[str, float | dict[str, float]], Shorthand("all")] = field(default_factory=dict)
    anything: Any = None


def test_values_are_converted_to_their_types() -> None:
    built = build(
        Outer, {"inner": {"count": np.int64(3)}, "share": 7, "either": "none", "rows": [[1, None]], "table": 5, "anything": {1: 2}}
    )
    assert built == Outer(Inner(3), 7.0, "fast", None, [[1.0, None]], ["a"], {"all": 5.0}, {1: 2})
    assert isinstance(built.share, float)
    assert build(Outer, {"inner": {"count": 1}, "either": "auto", "table": {"conv": {"1-2": 3}}}).table == {"conv": {"1-2": 3.0}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inner": {}}, "inner lacks count"),
        ({"inner": 3}, "inner must be a table"),
        ({"inner": {"count": 0}}, "inner.count must be at least 1"),
        ({"inner": {"count": True}}, "inner.count must be a whole number"),
        ({"inner": {"count": 1.0}}, "inner.count must be a whole number"),
        ({"inner": {"count": 1, "nam": "y"}}, "unknown key 'inner.nam': did you mean 'inner.name'"),
        ({"share": 100.5}, "share must be "),
        ({"share": float("nan")}, "share must be "),
        ({"mode": "exakt"}, "unknown value of mode 'exakt': did you mean 'exact'"),
        ({"either": -1}, "either must be at least 0"),
        ({"either": "aut"}, "did you mean 'auto'"),
        ({"rows": [[1.0], ["x"]]}, "rows[1][0] must be a number or none"),
        ({"rows": {"a": 1}}, "rows must be a list of tables, each headed [[rows]]"),
        ({"names": []}, "names must have at least one entry"),
        ({"table": {"conv": {"1-2": "x"}}}, "table.conv.1-2 must be a number"),
        ({"table": {"conv": "x"}}, "table.conv must be a number or a table"),
    ],
)
def test_an_error_names_the_place_and_the_expected_value(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(Outer, {"inner": {"count": 1}, **change})
    assert str(error.value).startswith(told) or told in str(error.value)


def test_lists_of_bounded_numbers_are_checked_entry_by_entry() -> None:
    assert build(list[Percent | None], [1.5, None, 100.0]) == [1.5, None, 100.0]
    assert build(list[Percent], (1, 2.5)) == [1.0, 2.5]
    for wrong in ([1.0, 100.5], [float("nan")], [None], [True], ["1"]):
        with pytest.raises(ConfigError, match=r"^\[\d\] must be"):
            build(list[Percent], wrong)


def test_a_place_may_be_given() -> None:
    with pytest.raises(ConfigError, match=r"^learn\.inner\.count must be"):
        build(Outer, {"inner": {"count": 0}}, "learn")


@dataclass(frozen=True)
class Made:
    count: Count
    shares: tuple[Percent, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_dataclass_made_in_code_is_checked_like_one_that_is_read() -> None:
    made = Made(np.int64(3), [1, np.float32(2.5)])  # type: ignore[arg-type]
    assert made == build(Made, {"count": 3, "shares": [1, 2.5]})
    assert type(made.count) is int
    assert type(made.shares) is tuple
    for wrong in ({"count": 0}, {"count": 2.0}, {"count": True}, {"shares": (1.0, 101.0)}, {"shares": 1.0}):
        with pytest.raises(ConfigError, match=rf"Made\.{next(iter(wrong))}"):
            replace(made, **wrong)  # type: ignore[arg-type]
