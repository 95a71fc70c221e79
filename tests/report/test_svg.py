"""The page's charts: numbers that can be read on every shade, bands within their axis, points that can be seen."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from afaf.report import svg

STYLE = files("afaf.report").joinpath("templates/page.html.j2").read_text(encoding="utf-8")
INK = {"on": "on-pale", "on middle": "on-middle", "on strong": "on-full"}
READABLE = 4.5  # contrast, by WCAG


def colours(mode: str) -> dict[str, np.ndarray]:
    """The variables of the page's style."""
    root = re.findall(r":root \{(.*?)\}", STYLE)[("light", "dark").index(mode)]
    return {name: np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)]) / 255 for name, code in re.findall(r"--([\w-]+): #(\w{6})", root)}


def luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    darker, brighter = sorted((luminance(a), luminance(b)))
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_numbers_of_a_heat_map_can_be_read_on_every_shade(mode: str) -> None:
    known = colours(mode)
    for percent in range(101):
        share = percent / 100
        shade = share * known["heat"] + (1 - share) * known["card"]
        assert contrast(known[INK[svg.number_ink(share)]], shade) >= READABLE - 0.1, percent
    for ink, variable in INK.items():
        assert f"svg text.{ink.split()[-1]} {{ fill: var(--{variable})" in STYLE


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("top", [0.1, 0.2, 0.3, 0.6, 1.0])
def test_both_ends_of_an_axis_are_ticks_if_they_are_round(top: float, scale: float) -> None:
    ticks = svg._ticks(0.0, top * scale)
    assert (ticks[0], ticks[-1]) == (0.0, top * scale)
    assert len(ticks) <= 6
    assert all(low < high for low, high in pairwise(ticks))


def tooltip(one: svg.Series, i: int) -> str:
    return f"{one.name} {i}"


def test_a_band_stays_within_its_axis() -> None:
    wide = svg.Series("a", "red", [1, 2], [98.0, 3.0], [40.0, 40.0])
    drawn = svg.lines([wide], "a", tooltip, y_range=(0, 100))
    band = re.search(r'<path d="M([^"]*)Z"', drawn)
    grid = [float(y) for y in re.findall(r'y1="([\d.]+)"', drawn)]
    assert band is not None
    heights = [float(point.split()[1]) for point in band[1].split("L")]
    assert min(heights) == min(grid)
    assert max(heights) == max(grid)


@pytest.mark.parametrize(("epochs", "radius"), [(1, "3"), (2, "1.2")])
def test_a_point_without_a_line_is_large_enough_to_be_seen(epochs: int, radius: str) -> None:
    one = svg.Series("a", "red", list(range(epochs)), [1.0] * epochs)
    assert re.findall(r'r="([\d.]+)" fill="red"', svg.lines([one], "a", tooltip, marks=False)) == [radius] * epochs
