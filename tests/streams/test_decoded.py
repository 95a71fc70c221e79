"""Folders larger than memory: decoded once, into a file from which images are read; and images of real size learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import afaf
from afaf.errors import DataError
from afaf.streams import decoded, own
from afaf.streams.sources.class_folders import SkippedImages
from afaf.streams.tasks import StoredImages
from afaf.training.task_data import RngScope, TaskData
from streams import makers

QUICK = {"network.name": "mlp", "learn.epochs": 1, "learn.batch_size": 4, "stream.size": 12}


def folder(root: Path, side: int, per_class: int = 8, classes: str = "abcd") -> Path:
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        pattern = rng.uniform(0, 255, (4, 4, 3)).repeat(side // 4, 0).repeat(side // 4, 1)
        (root / "train" / name).mkdir(parents=True)
        for i in range(per_class):
            image = np.clip(pattern + rng.normal(0, 20, pattern.shape), 0, 255).astype(np.uint8)
            grey = number == 0 and i == 0
            (root / "train" / name / f"{i}.png").write_bytes(makers.png(image[..., 0] if grey else image))
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All folders count as larger than memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(own, "IN_MEMORY", 0)
    return tmp_path / "cache" / "afaf" / "images"


@pytest.mark.usefixtures("cache")
def test_a_folder_from_a_file_is_the_same_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, labels, normalisation, batches and results; nothing is decoded a second time."""
    photos = folder(tmp_path / "photos", 20)
    options: dict[str, Any] = {"size": 12, "augment": "resized-crop-flip"}
    stored = own.stream_from_folder(photos, **options)
    monkeypatch.setattr(decoded, "read_image", None)
    again = own.stream_from_folder(photos, **options)
    name, settings = f"folder:{photos}", {**QUICK, "stream.augment": "crop-flip", "run.validation": 0.2}
    results = {method: afaf.run(name, method, settings=settings, device="cpu") for method in ("afaf", "joint")}
    monkeypatch.setattr(own, "IN_MEMORY", 1 << 30)
    plain = own.stream_from_folder(photos, **options)
    scope = RngScope(0, 1)
    for a, b, c in zip(stored, again, plain, strict=True):
        assert isinstance(a.train.images, StoredImages)
        assert isinstance(b.test.images, StoredImages)
        assert a.preparation == c.preparation
        for x, y in ((a.train, c.train), (b.train, c.train), (a.test, c.test)):
            assert np.array_equal(np.asarray(x.images), np.asarray(y.images))
            assert np.array_equal(x.labels, y.labels)
        feeds = [TaskData([(task.train, task.preparation)]) for task in (a, c)]
        batches = [feed.batch(feed.order(scope), scope)[0] for feed in feeds]
        assert batches[0].equal(batches[1])
    for method, result in results.items():
        assert afaf.run(name, method, settings=settings, device="cpu").R == result.R


def test_files_that_changed_are_decoded_anew(tmp_path: Path, cache: Path) -> None:
    photos = folder(tmp_path / "photos", 20)
    first = own.stream_from_folder(photos, size=12)
    (photos / "train" / "b" / "0.png").write_bytes(makers.png(np.zeros((20, 20, 3), np.uint8)))
    second = own.stream_from_folder(photos, size=12)
    assert not np.array_equal(np.asarray(first[0].train.images), np.asarray(second[0].train.images))
    half = sorted(cache.glob("*.npy"))[0]
    half.write_bytes(half.read_bytes()[:1000])
    assert len(own.stream_from_folder(photos, size=12)[0].train) == len(second[0].train)


def test_images_that_cannot_be_read(tmp_path: Path, cache: Path) -> None:
    """Refused, and nothing is kept; or left out, and named each time."""
    photos = folder(tmp_path / "photos", 20)
    (photos / "train" / "c" / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3\.png"):
        own.stream_from_folder(photos, size=12)
    assert list(cache.iterdir()) == []
    for _ in range(2):
        with pytest.warns(SkippedImages, match=r"3\.png"):
            stream = own.stream_from_folder(photos, size=12, unreadable="skip")
        assert sum(len(task.train) + len(task.test) for task in stream) == 31
    with pytest.raises(DataError, match=r"3\.png"):
        own.stream_from_folder(photos, size=12)


def test_a_disk_without_room_is_told_of(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = decoded.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(decoded.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(DataError, match="images"):
        own.stream_from_folder(folder(tmp_path / "photos", 20), size=12)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("size", [64, pytest.param(160, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("cache")
def test_images_of_real_size_learn(tmp_path: Path, size: int) -> None:
    """With the network that suits them, and random windows of them."""
    settings = {"stream.size": size, "stream.augment": "resized-crop-flip", "network.width": 16, "learn.epochs": 15, "learn.batch_size": 8}
    results = afaf.run(f"folder:{folder(tmp_path / 'photos', size, per_class=16)}", "afaf", settings=settings, device="cpu")
    assert results.model is not None
    assert results.model.learner.network.spec.name == "resnet18-imagenet"
    assert results.la > 70  # patterns of 4 x 4 blocks; two tasks of two classes


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("size", [64, 160])
def test_photographs_learn(size: int, tmp_path: Path) -> None:
    """The Grocery Store Dataset, which AFAF_PHOTOS names: three tasks, each above chance when it is new."""
    photos = os.environ.get("AFAF_PHOTOS")
    if photos is None:
        pytest.skip("AFAF_PHOTOS names no folder of photographs")
    (tmp_path / "order.txt").write_text("Apple, Milk\nBanana, Juice\nMelon, Yoghurt\n")
    settings = {"stream.size": size, "stream.order": str(tmp_path / "order.txt"), "stream.augment": "resized-crop-flip"}
    settings |= {"network.width": 16, "learn.epochs": 20, "learn.batch_size": 16, "run.images": 40}
    results = afaf.run(f"folder:{photos}", "afaf", settings=settings, device="cpu")
    assert min(results.R_task_il[i][i] for i in range(3)) > 60
    assert results.acc_task_il > 70
