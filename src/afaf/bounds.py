"""Bounds of numbers, stated in the type of the field: `epochs: Count = 40`. `afaf.checked.build` checks them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated

from afaf.errors import ConfigError

LARGEST_INT = (1 << 31) - 1  # of any setting: indices and counts stay exact in int32 and in floats
LARGEST = sys.float_info.max
LARGEST_FLOAT = 3e38  # of any setting: float32 holds it


class OutOfBoundsError(ConfigError):
    """A setting of the right type, but too small, too large or not finite."""


@dataclass(frozen=True)
class Within:
    """low <= value <= high; an `above` excludes `low`, a `below` excludes `high`."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        ends = []
        if self.low > -LARGEST:
            ends.append(f"greater than {self.low:g}" if self.above else f"at least {self.low:g}")
        if self.high < LARGEST:
            ends.append(f"less than {self.high:,g}" if self.below else f"at most {self.high:,.10g}")
        return " and ".join(ends) or "finite"


DEFAULT = {int: Within(-LARGEST_INT, LARGEST_INT), float: Within(-LARGEST_FLOAT, LARGEST_FLOAT)}

Count = Annotated[int, Within(1)]
CountOrZero = Annotated[int, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
NotNegative = Annotated[float, Within(0)]
Portion = Annotated[float, Within(0, 1, below=True)]
Percent = Annotated[float, Within(0, 100)]
Whole = Annotated[int, Within(0, LARGEST)]  # of a result: the limits of settings do not apply
Finite = Annotated[float, Within(-LARGEST, LARGEST)]


def check_bounds(value: float, bounds: Within, where: str) -> None:
    """Refuse a number outside its bounds, and any number that is not finite or too large to compute with."""
    if not bounds.holds(value):
        raise OutOfBoundsError(f"{where} must be {bounds}, not {shown(value)}")
    general = DEFAULT[type(value)]
    if math.isinf(bounds.high - bounds.low) and not general.holds(value):
        raise OutOfBoundsError(f"{where} must be finite and {general}, not {shown(value)}")


def shown(value: object) -> str:
    """A value in an error message, shortened if it is long; an int of thousands of digits cannot be printed whole."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"
