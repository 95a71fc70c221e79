"""Mutated files: every reader ends with images or with one `DataError`, in little memory, and writes nothing."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from afaf.errors import DataError
from afaf.files import writing
from afaf.streams.class_order import read_order
from afaf.streams.download import _unpack
from afaf.streams.sources.cifar import cifar_records
from afaf.streams.sources.idx import idx_records
from afaf.streams.sources.images import read_image
from afaf.streams.sources.notmnist import notmnist_records
from afaf.streams.sources.npz import read_arrays
from afaf.streams.sources.source import Records
from streams import makers

MEMORY = 200 << 20  # bytes a reader may take for these files of a few kilobytes, the decoders' own libraries included

Mutation = Callable[[bytes], bytes]


def _cut(at: float) -> Mutation:
    return lambda content: content[: int(at * len(content))]


def _flip(at: float, bits: int) -> Mutation:
    def mutated(content: bytes) -> bytes:
        if not content:
            return content
        changed = bytearray(content)
        changed[int(at * (len(content) - 1))] ^= bits
        return bytes(changed)

    return mutated


def _overwrite(at: float, new: bytes) -> Mutation:
    return lambda content: content[: int(at * len(content))] + new + content[int(at * len(content)) + len(new) :]


def _insert(at: float, new: bytes) -> Mutation:
    return lambda content: content[: int(at * len(content))] + new + content[int(at * len(content)) :]


def _repeat(start: float, length: int) -> Mutation:
    def mutated(content: bytes) -> bytes:
        at = int(start * len(content))
        return content[: at + length] + content[at:]

    return mutated


places = st.one_of(st.floats(0, 1), st.floats(0, 0.02))  # headers deserve more attention
telling = st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"77777777777", b"-1", b"../"])
mutations = st.one_of(
    st.builds(_cut, places),
    st.builds(_flip, places, st.integers(1, 255)),
    st.builds(_overwrite, places, st.one_of(telling, st.binary(max_size=16))),
    st.builds(_insert, places, st.one_of(telling, st.binary(max_size=16))),
    st.builds(_repeat, places, st.integers(1, 2000)),
)


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    for mutation in draw(st.lists(mutations, min_size=1, max_size=4)):
        content = mutation(content)
    return content


def zipped(content: bytes) -> st.SearchStrategy[bytes]:
    """Damage below the compression, where it reaches the reader, and damage to the compressed bytes."""
    return st.one_of(mutated(content).map(gzip.compress), mutated(gzip.compress(content)))


# --- one honest file of each kind, and how it is read


def _tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(makers.pixels(20, 24, 3)).save(buffer, kind)
    return buffer.getvalue()


IDX_IMAGES, IDX_LABELS = makers.idx_bytes(makers.pixels(3, 28, 28)), makers.idx_bytes(np.arange(3, dtype=np.uint8))
CIFAR = makers.cifar_bytes(makers.pixels(3, 32, 32, 3), np.arange(3, dtype=np.uint8))
LETTERS = _tar({**makers.letters(1), "notMNIST_small/" + "x" * 150 + "/A/long.png": makers.png(makers.pixels(28, 28))})
ARCHIVE = _tar({f"cifar-10-batches-bin/data_batch_{i}.bin": CIFAR for i in (1, 2)})
PICTURES = tuple(_picture(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"))


def drain(records: Records) -> None:
    for images, labels in records.pairs():
        assert len(images) == len(labels)


def read_cifar(path: Path) -> None:
    drain(cifar_records([path], 1, 10, 100))


def read_idx_images(path: Path) -> None:
    labels = path.with_name("labels")
    labels.write_bytes(IDX_LABELS)
    drain(idx_records(path, labels, 10, 100))
    labels.unlink()


def read_idx_labels(path: Path) -> None:
    images = path.with_name("images")
    images.write_bytes(IDX_IMAGES)
    drain(idx_records(images, path, 10, 100))


def read_letters(path: Path) -> None:
    for records in notmnist_records(path).values():
        drain(records)


def unpack(path: Path) -> None:
    with writing(path.parent):
        _unpack(path, path.with_name("ready"), ("cifar-10-batches-bin",))


CASES: dict[str, tuple[st.SearchStrategy[bytes], Callable[[Path], object]]] = {
    "cifar": (mutated(CIFAR), read_cifar),
    "idx images": (
        st.one_of(mutated(IDX_IMAGES), mutated(IDX_IMAGES).map(gzip.compress), mutated(gzip.compress(IDX_IMAGES))),
        read_idx_images,
    ),
    "idx labels": (
        st.one_of(mutated(IDX_LABELS), mutated(IDX_LABELS).map(gzip.compress), mutated(gzip.compress(IDX_LABELS))),
        read_idx_labels,
    ),
    "letters": (zipped(LETTERS), read_letters),
    "archive": (zipped(ARCHIVE), unpack),
    "npz": (mutated(_npz(x_train=makers.pixels(4, 5, 5), y_train=np.arange(4))), read_arrays),
    "pictures": (st.sampled_from(PICTURES).flatmap(mutated), lambda path: read_image(path, 32)),
    "order": (mutated(b"cat, dog\nship, truck # remark\n"), read_order),
}


def fuzz(name: str, examples: int, folder: Path) -> None:
    """Mutates and reads; anything but success or `DataError` is a failure, and so is a file outside `folder`."""
    contents, read = CASES[name]
    outside = set(folder.parent.iterdir())
    path = folder / "file"
    before = peak_memory()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(contents)
    def run(content: bytes) -> None:
        path.write_bytes(content)
        problem = ""
        try:
            read(path)
        except DataError as error:
            problem = str(error)
        assert not problem or str(path.parent) in problem  # it names the file

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()
    assert set(folder.parent.iterdir()) == outside
    assert peak_memory() - before < MEMORY


def peak_memory() -> int:
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("name", CASES)
def test_mutated_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    fuzz(name, 60, tmp_path / "inside")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_thousands_of_mutated_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    fuzz(name, 1000, tmp_path / "inside")


def test_the_honest_files_are_read(tmp_path: Path) -> None:
    """Or the tests above would be about nothing."""
    honest = {
        "cifar": CIFAR,
        "idx images": gzip.compress(IDX_IMAGES),
        "idx labels": IDX_LABELS,
        "letters": gzip.compress(LETTERS),
        "archive": gzip.compress(ARCHIVE),
        "npz": _npz(x_train=makers.pixels(4, 5, 5), y_train=np.arange(4)),
        "order": b"a, b\n",
    }
    for name, content in honest.items():
        (tmp_path / name).write_bytes(content)
        CASES[name][1](tmp_path / name)
    for i, content in enumerate(PICTURES):
        (tmp_path / str(i)).write_bytes(content)
        assert read_image(tmp_path / str(i), 32).shape == (32, 32, 3)
