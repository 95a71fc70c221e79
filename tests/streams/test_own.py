"""A folder, arrays or a dataset become a stream by the documented rule; what cannot be read is named."""

from __future__ import annotations

import errno
import io
import os
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from afaf.errors import ConfigError, DataError
from afaf.streams.benchmarks import open_stream, outline_of
from afaf.streams.class_order import read_order
from afaf.streams.own import SkippedImages, find_class_folders, stream_from_dataset
from afaf.streams.sources.class_folders import image_files
from afaf.streams.sources.images import fit, pixels_of, read_image
from streams import makers


def save(path: Path, image: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def folder_of(root: Path, classes: str = "abcd", n: int = 5, side: int = 32, grey: bool = False, part: str = "train") -> Path:
    for i, name in enumerate(classes):
        for k in range(n):
            shape = (side, side) if grey else (side, side, 3)
            save(root / part / name / f"{k}.png", makers.pixels(*shape, seed=100 * i + k))
    return root


# --- folders


def test_a_folder_becomes_a_stream(tmp_path: Path) -> None:
    folder_of(tmp_path)
    stream = open_stream(f"folder:{tmp_path}")
    assert [task.class_names for task in stream] == [("a", "b"), ("c", "d")]
    assert stream.outline.input_shape == (3, 32, 32)
    assert [(len(task.train), len(task.test)) for task in stream] == [(8, 2), (8, 2)]
    found = {image.tobytes() for task in stream for split in (task.train, task.test) for image in split.images}
    assert found == {makers.pixels(32, 32, 3, seed=100 * i + k).tobytes() for i in range(4) for k in range(5)}
    assert outline_of(f"folder:{tmp_path}") == stream.outline


def test_a_test_folder_is_the_test_part(tmp_path: Path) -> None:
    folder_of(tmp_path)
    folder_of(tmp_path, part="test", n=3)
    stream = open_stream(f"folder:{tmp_path}", classes_per_task=4)
    assert [(len(task.train), len(task.test)) for task in stream] == [(20, 12)]


def test_without_a_train_folder_the_subfolders_are_the_classes(tmp_path: Path) -> None:
    folder_of(tmp_path, part=".")
    assert open_stream(f"folder:{tmp_path}").outline.n_classes == 4


def test_the_split_is_seeded_and_independent_of_the_order_on_disk(tmp_path: Path) -> None:
    folder_of(tmp_path, n=20)
    parts = [[task.test.images.tobytes() for task in open_stream(f"folder:{tmp_path}", seed=seed)] for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]


def test_grey_stays_one_channel_unless_something_is_coloured(tmp_path: Path) -> None:
    folder_of(tmp_path, grey=True)
    stream = open_stream(f"folder:{tmp_path}")
    assert stream[0].train.images.shape[1:] == (32, 32, 1)
    assert stream.outline.input_shape == (3, 32, 32)
    save(tmp_path / "train" / "a" / "z.png", makers.pixels(32, 32, 3))
    assert open_stream(f"folder:{tmp_path}")[0].train.images.shape[1:] == (32, 32, 3)


def test_a_coloured_test_part_colours_the_training_part(tmp_path: Path) -> None:
    folder_of(tmp_path, grey=True)
    folder_of(tmp_path, part="test")
    stream = open_stream(f"folder:{tmp_path}")
    images = stream[0].train.images
    assert images.shape[3] == stream[0].test.images.shape[3] == 3
    assert np.array_equal(images[..., 0], images[..., 2])


def test_normalisation_is_measured_on_the_first_task_alone(tmp_path: Path) -> None:
    folder_of(tmp_path)
    first = open_stream(f"folder:{tmp_path}")[0]
    pixels = first.train.images.reshape(-1, 3) / 255
    assert first.preparation.mean == pytest.approx(pixels.mean(0))
    assert first.preparation.std == pytest.approx(pixels.std(0))
    for k in range(5):
        save(tmp_path / "train" / "d" / f"{k}.png", np.zeros((32, 32, 3), np.uint8))
    assert open_stream(f"folder:{tmp_path}")[1].preparation == first.preparation


def test_options_reach_the_stream(tmp_path: Path) -> None:
    folder_of(tmp_path, side=40)
    order = tmp_path / "order.txt"
    order.write_text("# two tasks\nd, a\n\nb,c  # the rest\n")
    stream = open_stream(f"folder:{tmp_path}", size=24, order=str(order), augment="crop-flip", test_fraction=0.4)
    assert [task.class_names for task in stream] == [("d", "a"), ("b", "c")]
    assert stream.outline.input_shape == (3, 24, 24)
    assert stream[1].preparation.augment == "crop-flip"
    assert [len(task.test) for task in stream] == [4, 4]
    flat = open_stream(f"folder:{tmp_path}", class_order="c,a,d", classes_per_task=1)
    assert flat.class_order == ("c", "a", "d")
    assert open_stream(f"folder:{tmp_path}", class_order=[["c"], ["a", "d"]])[1].class_names == ("a", "d")


def test_size_zero_leaves_images_alone(tmp_path: Path) -> None:
    folder_of(tmp_path, side=20, grey=True)
    assert open_stream(f"folder:{tmp_path}", size=0).outline.input_shape == (1, 20, 20)
    save(tmp_path / "train" / "b" / "0.png", makers.pixels(21, 20))
    with pytest.raises(DataError, match=r"b/0.png.*\(21, 20, 1\).*all must be alike"):
        open_stream(f"folder:{tmp_path}", size=0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sise": 3}, "did you mean 'size'"),
        ({"size": -1}, "size must be"),
        ({"size": 2.5}, "size must be"),
        ({"unreadable": "ignore"}, "unreadable"),
        ({"order": "a.txt", "class_order": ["a"]}, "not both"),
        ({"augment": "cutmix"}, "augment"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"seed": "x"}, "seed"),
        ({"classes_per_task": True}, "classes_per_task must be"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        open_stream(f"folder:{tmp_path}", **options)


def test_a_folder_one_level_too_high_is_told_from_classes(tmp_path: Path) -> None:
    for month in ("january", "february"):
        folder_of(tmp_path / "photos" / month)
    with pytest.raises(DataError, match=r"photos/february.*photos/january"):
        open_stream(f"folder:{tmp_path}/photos")


def test_folders_that_are_no_stream(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        open_stream(f"folder:{tmp_path}/nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: not a folder"):
        open_stream(f"folder:{tmp_path}/file")
    with pytest.raises(DataError, match="no class folders"):
        open_stream(f"folder:{tmp_path}")
    folder_of(tmp_path)
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images"):
        open_stream(f"folder:{tmp_path}")
    (tmp_path / "train" / "empty").rmdir()
    save(tmp_path / "train" / "single" / "1.png", makers.pixels(9, 9))
    with pytest.raises(DataError, match="one image only of single"):
        open_stream(f"folder:{tmp_path}")
    assert open_stream(f"folder:{tmp_path}", class_order="a,b").outline.n_classes == 2  # the others need not suffice
    folder_of(tmp_path, part="test", classes="abcx")
    with pytest.raises(DataError, match=r"test images of x, but no training images"):
        open_stream(f"folder:{tmp_path}")


def test_a_test_folder_without_a_train_folder_is_no_class(tmp_path: Path) -> None:
    folder_of(tmp_path, part=".")
    folder_of(tmp_path, part="test")
    for look in (lambda: open_stream(f"folder:{tmp_path}"), lambda: find_class_folders(tmp_path)):
        with pytest.raises(DataError, match=r"no folder train: put .* into .*train"):
            look()
    save(tmp_path / "test" / "1.png", makers.pixels(32, 32, 3))  # a class of that name
    assert "test" in open_stream(f"folder:{tmp_path}").class_order


def test_no_class_vanishes_because_its_images_cannot_be_read(tmp_path: Path) -> None:
    folder_of(tmp_path)
    for path in (tmp_path / "train" / "b").iterdir():
        path.write_bytes(b"")
    with pytest.warns(SkippedImages), pytest.raises(DataError, match="of b no image at all can be read"):
        open_stream(f"folder:{tmp_path}", unreadable="skip")
    with pytest.warns(SkippedImages), pytest.raises(DataError, match="of b no image at all can be read"):
        find_class_folders(tmp_path).read(32, 3, "skip")
    with pytest.warns(SkippedImages):
        assert open_stream(f"folder:{tmp_path}", unreadable="skip", class_order="a,c").class_order == ("a", "c")


def test_folders_below_a_class_are_followed_unless_hidden(tmp_path: Path) -> None:
    folder_of(tmp_path, classes="ab", n=2)
    save(tmp_path / "elsewhere" / "1.png", makers.pixels(32, 32, 3))
    save(tmp_path / "train" / "a" / ".thumbnails" / "1.png", makers.pixels(32, 32, 3))
    (tmp_path / "train" / "b" / "folder.png").mkdir()
    for link, to in (("linked", "elsewhere"), ("again", "elsewhere"), ("round", "train/a")):
        (tmp_path / "train" / "a" / link).symlink_to(tmp_path / to, target_is_directory=True)
    found = find_class_folders(tmp_path).files
    assert [(str(path.relative_to(tmp_path / "train")), label) for path, label in found] == [
        ("a/0.png", "a"),
        ("a/1.png", "a"),
        ("a/again/1.png", "a"),
        ("b/0.png", "b"),
        ("b/1.png", "b"),
    ]
    assert image_files(tmp_path / "train") == [path for path, _ in found]


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    closed = tmp_path / "train" / "a" / "closed"
    closed.mkdir()
    scan = os.scandir

    def scandir(path: object) -> object:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="closed: cannot be read"):
        open_stream(f"folder:{tmp_path}")


def test_unreadable_images_are_named_and_skipped_on_request(tmp_path: Path) -> None:
    folder_of(tmp_path)
    broken = [tmp_path / "train" / "b" / name for name in ("torn.png", "text.jpg", "empty.png")]
    for path, content in zip(broken, (makers.png(makers.pixels(32, 32))[:200], b"hello", b""), strict=True):
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_stream(f"folder:{tmp_path}")
    assert all(str(path) in str(caught.value) for path in broken)
    assert "3 of 23 images" in str(caught.value)
    with pytest.warns(SkippedImages, match=r"3 of 23[\s\S]*torn.png"):
        stream = open_stream(f"folder:{tmp_path}", unreadable="skip")
    assert sum(stream.outline.train_counts) == 16
    for path in (tmp_path / "train").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of the 23 images"):
        open_stream(f"folder:{tmp_path}", unreadable="skip")


@pytest.mark.parametrize("side", [8000, 30000])
def test_an_image_bomb_is_refused_before_it_is_decoded(tmp_path: Path, side: int) -> None:
    folder_of(tmp_path)
    rows = zlib.compress(bytes(side * (side // 8 + 1)), 9)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    (tmp_path / "train/a/bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
    )
    del rows, chunks
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb.png"):
        open_stream(f"folder:{tmp_path}")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


# --- the rule for images


def test_the_middle_square_is_scaled(tmp_path: Path) -> None:
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = (200, 100, 50)  # the middle square; beside it black
    found = pixels_of(Image.fromarray(wide), 5, "wide")
    assert found.shape == (5, 5, 3)
    assert np.array_equal(found, np.full((5, 5, 3), (200, 100, 50), np.uint8))
    high = fit(wide.transpose(1, 0, 2)[None], 5, "high")[0]
    assert np.array_equal(high, found)


def test_arrays_and_pictures_are_scaled_alike() -> None:
    image = makers.pixels(37, 50, 3)
    as_picture, as_array = pixels_of(Image.fromarray(image), 32, "x"), fit(image[None], 32, "x")[0]
    assert np.array_equal(as_picture, as_array)
    soft = image // 2 + 64  # nothing overshoots, so bytes are not cut off on the way
    as_float, as_array = fit(soft[None].astype(np.float32), 32, "x")[0], fit(soft[None], 32, "x")[0]
    assert np.abs(as_float - as_array).max() <= 1.5


def test_transparency_is_white_and_depth_is_cut() -> None:
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (pixels_of(Image.fromarray(clear), None, "x") == 255).all()
    grey_clear = np.zeros((4, 4, 2), np.uint8)
    assert pixels_of(Image.fromarray(grey_clear, "LA"), None, "x").tolist() == [[[255]] * 4] * 4
    deep = np.array([[0, 255, 256], [32768, 65535, 513]], np.uint16)
    assert pixels_of(Image.fromarray(deep), None, "x")[..., 0].tolist() == [[0, 0, 1], [128, 255, 2]]
    assert pixels_of(Image.new("1", (2, 2), 1), None, "x").tolist() == [[[255]] * 2] * 2
    assert pixels_of(Image.new("CMYK", (2, 2)), None, "x").shape == (2, 2, 3)
    assert pixels_of(Image.fromarray(makers.pixels(4, 4, 3)).quantize(4), None, "x").shape == (4, 4, 3)
    with pytest.raises(DataError, match="floating-point"):
        pixels_of(Image.new("F", (2, 2)), None, "x")


@pytest.mark.parametrize(("mode", "clear", "seen"), [("L", 0, 200), ("1", 0, 255), ("I;16", 7, 200 << 8)])
def test_a_grey_value_that_stands_for_transparent_is_white(tmp_path: Path, mode: str, clear: int, seen: int) -> None:
    image = Image.new(mode, (2, 1), clear)
    image.putpixel((1, 0), seen)
    image.save(tmp_path / "x.png", transparency=clear)
    assert read_image(tmp_path / "x.png", None).tolist() == [[[255], [min(seen, 255) if mode != "I;16" else 200]]]


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    image = Image.fromarray(makers.pixels(8, 12, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    image.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "turned.png", None), np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "tif", "ppm"])
def test_every_documented_format_is_read(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"x.{suffix}", np.full((16, 16, 3), 128, np.uint8))
    assert np.abs(read_image(tmp_path / f"x.{suffix}", 32).astype(int) - 128).max() <= 8


# --- arrays


def arrays(n: int = 24) -> dict[str, np.ndarray]:
    return {"x_train": makers.pixels(n, 32, 32, 3), "y_train": np.arange(n) % 4}


def npz(path: Path, **content: np.ndarray) -> str:
    np.savez(path, **content)
    return f"npz:{path}"


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("X", "y"), ("images", "labels"), ("train_images", "train_labels")])
def test_arrays_become_a_stream(tmp_path: Path, names: tuple[str, str]) -> None:
    made = dict(zip(names, arrays().values(), strict=True))
    stream = open_stream(npz(tmp_path / "a.npz", **made))
    assert [task.class_names for task in stream] == [("0", "1"), ("2", "3")]
    found = {image.tobytes() for task in stream for split in (task.train, task.test) for image in split.images}
    assert found == {image.tobytes() for image in made[names[0]]}


def test_arrays_keep_their_test_part_order_and_type(tmp_path: Path) -> None:
    made = arrays()
    made["x_train"] = (makers.pixels(24, 20, 30) / 255).astype(np.float64)
    name = npz(tmp_path / "a.npz", **made, x_test=made["x_train"][:8], y_test=made["y_train"][:8, None])
    stream = open_stream(name, class_order="3,0,1", classes_per_task=2)
    assert stream.class_order == ("3", "0", "1")
    assert stream.label_map == {3: 0, 0: 1, 1: 2}
    assert stream[0].train.images.dtype == np.float32
    assert stream[0].train.images.shape[1:] == (32, 32, 1)
    assert len(stream[0].test) == 4


def test_vectors_and_fortran_order(tmp_path: Path) -> None:
    made = {"x_train": np.asfortranarray(np.random.default_rng(0).normal(size=(24, 7))), "y_train": np.array(list("ab") * 12)}
    stream = open_stream(npz(tmp_path / "a.npz", **made))
    assert stream.outline.input_shape == (7,)
    rows = {row.tobytes() for split in (stream[0].train, stream[0].test) for row in split.images}
    assert rows == {row.tobytes() for row in made["x_train"].astype(np.float32)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"y_train": None}, "no array 'y_train'"),
        ({"x_train": None}, "no array 'x_train'"),
        ({"y_train": np.arange(23)}, "24 images but 23 labels"),
        ({"y_train": np.linspace(0, 1, 24)}, "labels"),
        ({"y_train": np.array([{}] * 24)}, "never loaded"),
        ({"x_test": makers.pixels(3, 32, 32, 3)}, "give both or neither"),
        ({"x_train": makers.pixels(24, 3, 32, 32)}, "channels come last"),
        ({"x_train": np.full((24, 8, 8), np.nan)}, "NaN"),
        ({"x_train": np.array(["x"] * 24)}, "shape"),
        ({"x_train": makers.pixels(24, 0, 5)}, "shape"),
        ({"x_train": makers.pixels(24, 8, 8), "x_test": makers.pixels(24, 64), "y_test": np.arange(24) % 4}, r"\(24, 8, 8\).*\(24, 64\)"),
        ({"x_train": makers.pixels(24, 64), "x_test": makers.pixels(24, 8, 8), "y_test": np.arange(24) % 4}, r"\(24, 64\).*\(24, 8, 8\)"),
    ],
)
def test_arrays_that_are_no_stream(tmp_path: Path, change: dict, word: str) -> None:
    content = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    with pytest.raises(DataError, match=word) as caught:
        open_stream(npz(tmp_path / "a.npz", **content))
    assert "a.npz" in str(caught.value) or "labels" in str(caught.value)


def npy(shape: tuple[int, ...], descr: str = "|u1", body: bytes = b"x" * 64) -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize("member", [npy((2**31, 2**20)), npy((-1, 3)), npy((65,)), npy((2**62, 2**62, 4)), b"junk", npy((3,), "|O")])
def test_array_headers_are_not_believed(tmp_path: Path, member: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", member)
        archive.writestr("y_train.npy", npy((3,)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"a\.npz"):
        open_stream(f"npz:{tmp_path / 'a.npz'}")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "a.npz", x_train=np.array([Trap()], object), y_train=np.arange(1))
    with pytest.raises(DataError, match="never loaded"):
        open_stream(f"npz:{tmp_path / 'a.npz'}")
    np.save(tmp_path / "b.npy", np.array([Trap()], object))
    with pytest.raises(DataError, match=r"b\.npy"):
        open_stream(f"npz:{tmp_path / 'b.npy'}")
    assert not (tmp_path / "sprung").exists()


# --- datasets


class Pairs:
    """Images of many kinds, as datasets of other libraries give them."""

    classes = ["zero", "one", "two", "three"]

    def __init__(self, kind: str, n: int = 24, broken: int | None = None):
        self.kind, self.n, self.broken = kind, n, broken

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[object, object]:
        if index == self.broken:
            raise RuntimeError("torn page")
        image, label = makers.pixels(32, 32, 3, seed=index), index % 4
        if self.kind == "pillow":
            return Image.fromarray(image), label
        if self.kind == "tensor":
            return torch.from_numpy(image).permute(2, 0, 1), torch.tensor(label)
        return image, np.int64(label)


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
def test_datasets_of_any_kind(kind: str) -> None:
    stream = stream_from_dataset(Pairs(kind), Pairs(kind, 8), name="pairs")
    assert [task.class_names for task in stream] == [("zero", "one"), ("two", "three")]
    expected = [makers.pixels(32, 32, 3, seed=i) for i in range(24) if i % 4 in (2, 3)]
    assert np.array_equal(stream[1].train.images, expected)
    assert stream.label_map == {0: 0, 1: 1, 2: 2, 3: 3}
    assert [len(task.test) for task in stream] == [4, 4]


def test_torch_datasets_and_names() -> None:
    x, y = torch.rand(24, 1, 28, 28), torch.arange(24) % 3
    stream = stream_from_dataset(torch.utils.data.TensorDataset(x, y), class_names={0: "x", 1: "y", 2: "z"}, classes_per_task=3)
    assert stream.class_order == ("x", "y", "z")
    assert stream[0].train.images.shape[1:] == (32, 32, 1)
    assert stream[0].train.images.dtype == np.float32
    assert stream.outline.input_shape == (3, 32, 32)


def test_items_that_cannot_be_read_are_named() -> None:
    with pytest.raises(DataError, match=r"1 of 24[\s\S]*dataset, item 7.*torn page"):
        stream_from_dataset(Pairs("array", broken=7))
    with pytest.warns(SkippedImages, match="item 7"):
        assert sum(stream_from_dataset(Pairs("array", broken=7), unreadable="skip").outline.train_counts) == 19


@pytest.mark.parametrize(
    ("items", "word"),
    [
        ([3, 4], "pair"),
        ([(np.zeros((4, 4)), 1.5)] * 4, "label"),
        ([(np.zeros(4), 1)] * 4, "shape"),
        ([(np.zeros((3, 32, 32), np.uint8), 1)] * 4, r"channels come last: transpose them from \(c, h, w\)"),
        ([(torch.zeros(32, 32, 3), 1)] * 4, "1 or 3 channels"),
        ([(torch.zeros(3, 4, 4, dtype=torch.bfloat16), 1)] * 4, "item 0"),
        ([(np.zeros((4, 4), np.uint8), 0), (np.zeros((4, 4)), 0)] * 3, "alike"),
        ([], "at least one image"),
    ],
)
def test_datasets_that_are_no_stream(items: list, word: str) -> None:
    with pytest.raises(DataError, match=word):
        stream_from_dataset(items)
    with pytest.raises(DataError, match="must have a length"):
        stream_from_dataset(iter(items))


# --- order files


def test_order_files(tmp_path: Path) -> None:
    path = tmp_path / "order.txt"
    path.write_text("Ankle boot, cat\n# remark\n\ndog\n", "utf-8")
    assert read_order(path) == [["Ankle boot", "cat"], ["dog"]]
    path.write_text("cat\ndog\n", "utf-8-sig")  # as Windows writes it, with a mark before the text
    assert read_order(path) == [["cat"], ["dog"]]
    assert read_order("a, b") == ["a", "b"]
    many = [f"class {i}" for i in range(1000)]
    assert read_order(",".join(many)) == many
    for content in (b"", b"# nothing\n", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"order\.txt"):
            read_order(path)
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_order(tmp_path / "none.txt")


def test_an_order_may_be_an_array(tmp_path: Path) -> None:
    folder_of(tmp_path, classes="0123")
    stream = open_stream(f"folder:{tmp_path}", class_order=np.array([[3, 0], [2, 1]]))
    assert [task.class_names for task in stream] == [("3", "0"), ("2", "1")]


def test_orders_that_do_not_fit(tmp_path: Path) -> None:
    folder_of(tmp_path)
    with pytest.raises(DataError, match="no samples of class 'zebra'"):
        open_stream(f"folder:{tmp_path}", class_order=["a", "zebra"])
    with pytest.raises(DataError, match="'a' is in task 1 and again in task 2"):
        open_stream(f"folder:{tmp_path}", class_order=[["a"], ["a", "b"]])


def test_npz_bytes_are_not_kept_open(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays())
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    assert len(open_stream(f"npz:{tmp_path / 'a.npz'}")) == 2
