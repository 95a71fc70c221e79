"""One step back from a change of a model file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from afaf.errors import DataError, RunError
from afaf.lifelong import model_store
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import checksum_of, load_any, replace_model, undo_change, undo_of
from afaf.lifelong.settings import LifelongSettings


@pytest.fixture(scope="module")
def model() -> Lifelong:
    draws = np.random.default_rng(0)
    images, labels = draws.integers(0, 255, (12, 8, 8, 1), dtype=np.uint8), ["cat", "dog"] * 6
    settings = LifelongSettings(max_tasks=2, epochs=1)
    return Lifelong.begin(images, labels, settings, torch.device("cpu")).learn(images, labels)


@pytest.fixture
def path(model: Lifelong, tmp_path: Path) -> Path:
    path = tmp_path / "m [1].safetensors"
    replace_model(path, model, None, keep_undo=True)
    return path


def change(path: Path, old: str, new: str) -> None:
    model = load_any(path)
    model.rename(old, new)
    replace_model(path, model, checksum_of(path), keep_undo=True)


def known(path: Path) -> list[str]:
    return [str(label) for label in load_any(path).life.known]


def test_the_first_change_is_taken_back_to_no_model(path: Path) -> None:
    undo_change(path, checksum_of(path))
    assert list(path.parent.iterdir()) == []


def test_one_step_is_kept(path: Path) -> None:
    change(path, "cat", "lion")
    before = path.read_bytes()
    change(path, "dog", "wolf")
    assert len(list(path.parent.iterdir())) == 2
    undo_change(path, checksum_of(path))
    assert path.read_bytes() == before
    with pytest.raises(DataError):
        undo_change(path, checksum_of(path))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_change_made_elsewhere_is_not_undone(path: Path) -> None:
    change(path, "cat", "lion")
    model = load_any(path)
    model.rename("dog", "wolf")
    replace_model(path, model, checksum_of(path))  # as afaf classes does
    assert undo_of(path) is None
    assert known(path) == ["lion", "wolf"]


def test_a_file_changed_meanwhile_is_left_alone(path: Path) -> None:
    stale = checksum_of(path)
    change(path, "cat", "lion")
    with pytest.raises(RunError):
        undo_change(path, stale)
    assert known(path) == ["lion", "dog"]


def test_a_process_that_dies_before_the_change_leaves_the_earlier_way_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(path, "cat", "lion")
    with monkeypatch.context() as patched:
        patched.setattr("afaf.files.write.os.replace", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            change(path, "dog", "wolf")
    assert known(path) == ["lion", "dog"]
    undo_change(path, checksum_of(path))
    assert known(path) == ["cat", "dog"]


def test_a_disk_without_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(model_store.os, "link", refused)
    change(path, "cat", "lion")
    undo_change(path, checksum_of(path))
    assert known(path) == ["cat", "dog"]
