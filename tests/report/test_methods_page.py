"""The tables of docs/methods.md are up to date."""

from __future__ import annotations

from pathlib import Path

from afaf.methods import BUILT_IN
from paper.method_tables import methods_tables

PAGE = (Path(__file__).parent.parent.parent / "docs" / "methods.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    shown = PAGE.partition("<!-- tables -->")[2].partition("<!-- end of tables -->")[0].strip()
    assert shown == methods_tables(), "put the output of `python -m paper.method_tables` between the two marks of docs/methods.md"


def test_every_method_is_described() -> None:
    for name in BUILT_IN:
        assert f"**{name}**" in PAGE
