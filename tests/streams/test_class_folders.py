"""Photographs as people have them: in formats that cannot be read, of many pixels, in folders within folders."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from afaf.errors import DataError
from afaf.streams.own import find_class_folders
from afaf.streams.sources import images
from afaf.streams.sources.class_folders import SkippedImages, image_files
from afaf.streams.sources.images import count_scans, read_image


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8)).save(path)
    return path


def test_images_of_a_format_that_cannot_be_read_are_told_of(tmp_path: Path) -> None:
    image = put(tmp_path / "cat" / "1.png")
    (tmp_path / "cat" / "2.JXL").write_bytes(b"")
    (tmp_path / "cat" / "notes.txt").write_text("")
    with pytest.warns(SkippedImages, match=r"1 \.jxl"):
        assert find_class_folders(tmp_path).files == [(image, "cat")]
    with pytest.warns(SkippedImages, match=r"1 \.jxl"):
        assert image_files(tmp_path) == [image]
    image.unlink()
    with pytest.raises(DataError, match=r"1 \.jxl"):
        find_class_folders(tmp_path)


@pytest.mark.parametrize(
    ("files", "advised"),
    [
        (["a/x/cat/1.png", "a/x/dog/1.png"], ["a/x"]),
        (["photos/test/cat/1.png", "photos/train/cat/1.png"], ["photos"]),
        (["fruit/apple/1.png", "vegetables/roots/carrot/1.png"], ["fruit", "vegetables/roots"]),
        (["january/cat/1.png", "february/dog/1.png", "test/cat/1.png", "test/dog/1.png"], ["february", "january"]),
        (["january/cat/1.png", "test/cat/1.png"], ["january"]),
    ],
)
def test_of_folders_within_folders_those_that_can_be_learned_are_named(files: list[str], advised: list[str], tmp_path: Path) -> None:
    for name in files:
        put(tmp_path / name)
    with pytest.raises(DataError) as told:
        find_class_folders(tmp_path)
    assert f"{tmp_path / 'train'}" not in str(told.value)
    for name in advised:
        assert f"{tmp_path / name}" in str(told.value).replace(",", " ").replace(";", " ").split()
        assert find_class_folders(tmp_path / name).files


def gradient(width: int, height: int) -> Image.Image:
    across = np.linspace(0, 255, width).astype(np.uint8)
    return Image.fromarray(np.broadcast_to(across, (height, width)).copy())


@pytest.mark.parametrize("progressive", [False, True])
def test_a_photograph_of_too_many_pixels_is_decoded_smaller(progressive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very nearly the same as if it were decoded whole; other formats cannot be, and are refused."""
    photo, whole = tmp_path / "photo.jpg", gradient(800, 600)
    whole.save(photo, quality=95, progressive=progressive)
    expected = read_image(photo, 32).astype(int)
    monkeypatch.setattr(images, "PIXELS_AT_MOST", 50_000)
    assert np.abs(read_image(photo, 32).astype(int) - expected).max() <= 4
    for size in (None, 300):  # as it is, or larger than what would fit
        with pytest.raises(DataError, match="photo"):
            read_image(photo, size)
    whole.save(tmp_path / "photo.png")
    with pytest.raises(DataError, match="photo"):
        read_image(tmp_path / "photo.png", 32)


def test_a_photograph_of_sixty_megapixels_is_read(tmp_path: Path) -> None:
    gradient(9000, 6700).save(tmp_path / "photo.jpg")
    assert read_image(tmp_path / "photo.jpg", 32).shape == (32, 32, 1)


def test_scans_are_counted_in_the_picture_and_not_in_what_is_packed_with_it() -> None:
    plain, progressive = io.BytesIO(), io.BytesIO()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))
    noise.save(plain, "JPEG", quality=100, comment=b"\xff\xda" * 50)
    noise.save(progressive, "JPEG", quality=100, progressive=True)
    assert count_scans(plain.getvalue() + b"\xff\xda" * 50, 1000) == 1
    scans = count_scans(progressive.getvalue(), 1000)
    assert scans == progressive.getvalue().count(b"\xff\xda")
    assert count_scans(progressive.getvalue(), 2) == 3
    for cut in range(0, 700, 7):
        assert count_scans(plain.getvalue()[:cut], 1000) <= 1
