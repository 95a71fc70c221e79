"""Names of classes in pictures: drawn as they are, whatever is in them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import afaf
from afaf.report import figures as module
from afaf.report.figures import MissingLetters, as_written, warn_once_of_missing_letters
from afaf.report.for_papers import write_figures

FORMULAS = ("$5 #1 & $10 ^", "$5^$ dog")
FOREIGN = ("\u732b", "\u72ac")


def folder_of(names: tuple[str, ...], place: Path) -> str:
    """A stream of one task from images of noise."""
    noise = np.random.default_rng(0)
    for name in names:
        (place / name).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(noise.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(place / name / f"{i}.png")
    return f"folder:{place}"


def run_of(names: tuple[str, ...], place: Path) -> Path:
    stream = folder_of(names, place / "own")
    afaf.run(stream, "afaf", device="cpu", out=place / "run", settings={"learn.epochs": 1, "stream.size": 8})
    return place / "run"


def test_what_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path) -> None:
    run = run_of(FORMULAS, tmp_path)
    assert (run / "ledger.png").exists()
    write_figures(run, tmp_path / "figures")
    for figure in ("ledger.svg", "confusion.svg"):
        drawn = (tmp_path / "figures" / figure).read_text(encoding="utf-8")
        assert "$5 #1 &amp; $10 ^" in drawn
        assert "$5^$ dog" in drawn


def test_a_file_in_the_way_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    run = run_of(("cat", "dog"), tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "curves.pdf").write_text("of somebody")
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(afaf.errors.OverwriteError, match=r"curves\.pdf"):
        write_figures(run, tmp_path / "figures")
    assert len(list((tmp_path / "figures").iterdir())) == 1


def test_words_without_dollars_stay_as_they_are() -> None:
    assert as_written("a cat_1 ^ 50 %") == "a cat_1 ^ 50 %"


def test_letters_that_the_font_lacks_are_told_of_once(tmp_path: Path) -> None:
    module._warn_of_missing_letters.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = run_of(FOREIGN, tmp_path)
        write_figures(run, tmp_path / "figures")
    assert [one.category for one in told if "letters" in str(one.message)] == [MissingLetters]
    assert not [one for one in told if "Glyph" in str(one.message)]


def test_warnings_of_other_things_are_passed_on() -> None:
    with pytest.warns(RuntimeWarning, match="something else"), warn_once_of_missing_letters():
        warnings.warn("something else", RuntimeWarning, stacklevel=1)
