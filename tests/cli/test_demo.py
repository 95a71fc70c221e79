"""The demo says of its methods what its numbers say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from typer.testing import CliRunner

from afaf.cli.demo import METHODS, compared, remembered
from afaf.cli.main import app


def test_the_help_names_every_method_that_is_shown() -> None:
    words = CliRunner().invoke(app, ["demo", "--help"], env={"COLUMNS": "200"}).output.replace(",", " ").split()
    assert set(METHODS) <= set(words)


def test_the_control_is_judged_by_the_numbers_of_the_table() -> None:
    """With the numbers left out, what is said depends on which is higher as printed, and on nothing else."""

    def said(ridge: float, plus: float) -> str:
        text = compared(ridge, plus)
        assert f"{ridge:.1f}" in text
        assert f"{plus:.1f}" in text
        return text.replace(f"{ridge:.1f}", "").replace(f"{plus:.1f}", "")

    assert said(99.2, 98.6) == said(60.0, 50.0)
    assert said(98.6, 99.2) == said(50.0, 60.0)
    assert said(98.61, 98.59) == said(70.0, 70.0)
    assert len({said(99.2, 98.6), said(98.6, 99.2), said(70.0, 70.0)}) == 3


@pytest.mark.parametrize("text", [remembered(70.1, 20.0, 63_920, 189_600), remembered(100, 7.3, 1, 123_456_789), compared(99.2, 98.6)])
def test_a_line_of_text_fits_and_is_nearly_full(text: str) -> None:
    lines = text.split("\n")
    for line, following in pairwise(lines):
        assert 60 < len(line) < 80
        assert not following.startswith(("%", " "))
