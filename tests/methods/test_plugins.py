"""Methods of other packages come through entry points; a broken one is named and harms nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

import afaf
from afaf.errors import ConfigError
from afaf.methods import BUILT_IN, find_method, method_names

CODE = """
from afaf.extend import DenseMethod, DenseOptions

class Other(DenseMethod[DenseOptions]):
    name = "other"
    summary = "fine-tuning under another name"
    Options = DenseOptions
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_package.py").write_text(CODE)
    about = tmp_path / "other_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    points = "[afaf.methods]\nother = other_package:Other\nbroken = other_package:Missing\nwrong = other_package:DenseOptions\n"
    (about / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_a_method_of_another_package_is_found_and_runs() -> None:
    assert set(method_names()) == {*BUILT_IN, "other", "broken", "wrong"}
    settings = {"learn.epochs": 1}
    results = afaf.run("split-digits", "other", settings=settings, device="cpu")
    assert results.method == "other"
    assert results.R == afaf.run("split-digits", "finetune", settings=settings, device="cpu").R


@pytest.mark.usefixtures("package")
def test_a_broken_entry_point_is_named() -> None:
    with pytest.raises(ConfigError, match=r"method 'broken' \(other_package:Missing\) cannot be loaded"):
        find_method("broken")
    with pytest.raises(ConfigError, match=r"'wrong' of group afaf\.methods"):
        find_method("wrong")
