"""Durations as people read them."""

from __future__ import annotations

import itertools

from afaf.text import duration

UNITS = {"s": 1, "min": 60, "h": 3600}
TIMES = (0, 0.01, 1, 1.6, 59, 60, 119.4, 119.6, 121, 150, 3599, 3600, 7169, 7171, 7199, 7201, 10799, 86400, 1e6)


def told(seconds: float) -> int:
    words = duration(seconds).split()
    return sum(int(number) * UNITS[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


def test_a_duration_is_right_up_to_its_smallest_unit_and_never_0_of_it() -> None:
    for seconds in TIMES:
        assert abs(told(seconds) - seconds) <= (1 if seconds < 120 else 30.5)
        assert (told(seconds) > 0) == (seconds > 0)


def test_a_longer_duration_is_never_told_as_a_shorter_one() -> None:
    assert all(told(shorter) <= told(longer) for shorter, longer in itertools.pairwise(TIMES))


def test_minutes_and_hours_are_never_60_of_the_smaller_unit() -> None:
    """Rounded up, they are one more of the larger."""
    for seconds in range(7000, 40000, 7):
        words = duration(seconds).split()
        assert words[1] == "min" or int(words[2]) < 60
