"""The contact sheet shows the first training images of every class, where it says they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from afaf.errors import DataError, WriteError
from afaf.streams.sheet import GAP, HEADING, MARGIN, NAMES, contact_sheet, save_contact_sheet
from afaf.streams.tasks import Stream
from streams import makers


def stream_of(side: int = 48, channels: int = 3, dtype: type = np.uint8) -> Stream:
    images = makers.pixels(40, side, side, channels).astype(dtype)
    return Stream.from_arrays(images, np.arange(40) % 4, name="shown")


def test_images_are_where_they_belong() -> None:
    stream = stream_of()
    sheet = np.asarray(contact_sheet(stream, per_class=3))
    row, column = MARGIN + 2 * HEADING + 3 * (48 + GAP), MARGIN + NAMES + 2 * (48 + GAP)
    fourth = stream[1].train.of_classes(3).images[2]
    assert np.array_equal(sheet[row : row + 48, column : column + 48], fourth)


@pytest.mark.parametrize(("side", "shown"), [(8, 48), (32, 64), (300, 128)])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_grow_and_large_ones_shrink(side: int, shown: int, channels: int) -> None:
    width, height = contact_sheet(stream_of(side, channels), per_class=2).size
    assert (width, height) == (2 * MARGIN + NAMES + 2 * (shown + GAP), 2 * MARGIN + 2 * HEADING + 4 * (shown + GAP))


def test_floats_are_stretched() -> None:
    assert contact_sheet(stream_of(dtype=np.float32)).getextrema()[0] == (0, 255)


def test_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    save_contact_sheet(stream_of(), tmp_path / "new" / "sheet.png")
    assert Image.open(tmp_path / "new" / "sheet.png").format == "PNG"
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteError, match="folder"):
        save_contact_sheet(stream_of(), tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "new"]


def test_vectors_cannot_be_shown() -> None:
    stream = Stream.from_arrays(np.zeros((20, 5)), np.arange(20) % 2)
    with pytest.raises(DataError, match="no images to show"):
        contact_sheet(stream)
