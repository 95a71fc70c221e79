"""Every reader gives back exactly what was written, and refuses what cannot be right with the file's name."""

from __future__ import annotations

import gzip
import shutil
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from afaf.errors import DataError
from afaf.streams.benchmarks import load_groups
from afaf.streams.sources import PARTS, SOURCES, Source
from afaf.streams.sources.cifar import cifar_records
from afaf.streams.sources.idx import idx_records
from afaf.streams.sources.listed import manifest_files
from afaf.streams.sources.notmnist import ARCHIVE, split_by_pixels
from streams import makers


def read(source: Source, folder: Path) -> dict[str, tuple[makers.Pixels, makers.Labels]]:
    opened = source.records(folder)
    return {part: (np.concatenate(list(opened[part].chunks())), opened[part].labels) for part in PARTS}


def same(found: dict, made: dict) -> bool:
    return all(np.array_equal(found[part][i], made[part][i]) for part in PARTS for i in (0, 1))


def test_cifar10_reads_what_was_written(tmp_path: Path) -> None:
    made = makers.cifar10(tmp_path)
    assert same(read(SOURCES["cifar10"], tmp_path), made)


def test_chunks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = makers.cifar10(tmp_path, per_file=10)
    for module in ("cifar", "idx", "source"):
        monkeypatch.setattr(f"afaf.streams.sources.{module}.CHUNK", 7)
    assert same(read(SOURCES["cifar10"], tmp_path), made)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    makers.cifar100(tmp_path, [3, 99], train=2, test=1)
    found = read(SOURCES["cifar100"], tmp_path)
    assert found["train"][1].tolist() == [3, 3, 99, 99]
    assert found["test"][1].tolist() == [3, 99]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_reads_what_was_written(tmp_path: Path, name: str, zipped: bool) -> None:
    made = makers.idx(tmp_path / name, zipped=zipped)
    assert same(read(SOURCES[name], tmp_path), made)


def test_idx_unpacked_under_its_zipped_name(tmp_path: Path) -> None:
    made = makers.idx(tmp_path / "mnist", zipped=False)
    for path in (tmp_path / "mnist").iterdir():
        path.rename(path.with_name(path.name + ".gz"))
    assert same(read(SOURCES["mnist"], tmp_path), made)


def test_mnist_is_padded_and_notmnist_scaled() -> None:
    images = makers.pixels(3, 28, 28, 1)
    padded = SOURCES["mnist"].fit(images)
    assert padded.shape == (3, 32, 32, 1)
    assert np.array_equal(padded[:, 2:30, 2:30], images)
    assert padded.sum() == images.sum()
    scaled = SOURCES["notmnist"].fit(images)
    expected = Image.fromarray(images[1, :, :, 0]).resize((32, 32), Image.Resampling.BICUBIC)
    assert np.array_equal(scaled[1, :, :, 0], np.asarray(expected))


def test_mnist_can_be_scaled_too_where_there_is_no_choice_nothing_changes() -> None:
    images = makers.pixels(3, 28, 28, 1)
    assert np.array_equal(SOURCES["mnist"].fit(images, "resize"), SOURCES["notmnist"].fit(images))
    assert np.array_equal(SOURCES["notmnist"].fit(images, "pad"), SOURCES["notmnist"].fit(images))
    colour = makers.pixels(2, 32, 32, 3)
    assert np.array_equal(SOURCES["cifar10"].fit(colour, "resize"), colour)


def test_the_way_asked_for_reaches_every_image(tmp_path: Path) -> None:
    makers.idx(tmp_path / "mnist")
    source = SOURCES["mnist"]
    groups = [(label,) for label in sorted(set(source.records(tmp_path)["train"].labels) & set(source.records(tmp_path)["test"].labels))]
    plain, scaled = (load_groups(source, tmp_path, groups, verify=False, fit=fit) for fit in (None, "resize"))
    for part in ("train", "test"):
        for a, b in zip(plain[part], scaled[part], strict=True):
            assert np.array_equal(b.images, source.fit(a.images[:, 2:30, 2:30], "resize"))
            assert not np.array_equal(a.images, b.images)


# --- notMNIST: split and packing


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=30, max_size=90), st.integers(0, 3), st.randoms())
def test_split_keeps_identical_images_together_and_meets_no_more_than_its_quota(pairs, seed, random) -> None:
    keys, labels = [bytes([k]) for k, _ in pairs], np.array([c for _, c in pairs], np.uint8)
    test = split_by_pixels(keys, labels, (3, 2, 4), seed)
    sides = {key: {bool(t) for k, t in zip(keys, test, strict=True) if k == key} for key in keys}
    assert all(len(side) == 1 for side in sides.values())
    assert all(np.bincount(labels[test], minlength=3) <= (3, 2, 4))
    shuffled = list(range(len(pairs)))
    random.shuffle(shuffled)
    again = split_by_pixels([keys[i] for i in shuffled], labels[shuffled], (3, 2, 4), seed)
    assert np.array_equal(again, test[shuffled])  # the order of the files does not enter


def test_split_meets_its_quota_exactly_where_images_differ() -> None:
    keys, labels = [str(i).encode() for i in range(300)], np.arange(300, dtype=np.uint8) % 3
    assert np.bincount(labels[split_by_pixels(keys, labels, (11, 10, 10))]).tolist() == [11, 10, 10]
    assert not np.array_equal(split_by_pixels(keys, labels, (11, 10, 10), 0), split_by_pixels(keys, labels, (11, 10, 10), 1))


def test_notmnist_is_the_same_from_archive_folder_and_under_other_names(tmp_path: Path) -> None:
    members = makers.letters(200)
    makers.tar_gz(tmp_path / ARCHIVE, members)
    first = read(SOURCES["notmnist"], tmp_path)
    other = tmp_path / "other"
    for i, (name, content) in enumerate(sorted(members.items(), reverse=True)):
        path = other / Path(name).with_name(f"x{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert same(read(SOURCES["notmnist"], other), first)
    assert [len(first[part][1]) for part in PARTS] == [2000 - 1871, 1871]


def test_unreadable_letters_are_left_out_and_named(tmp_path: Path) -> None:
    bad = {"notMNIST_small/A/empty.png": b"", "notMNIST_small/F/torn.png": makers.png(makers.pixels(28, 28))[:100]}
    odd = {"notMNIST_small/B/large.png": makers.png(makers.pixels(29, 28))}
    makers.tar_gz(tmp_path / ARCHIVE, {**makers.letters(3), **bad, **odd, "notMNIST_small/readme.txt": b"hello"})
    records = SOURCES["notmnist"].records(tmp_path)
    assert sum(len(records[part].labels) for part in PARTS) == 30
    assert records["train"].skipped == (*bad, *odd)


# --- what cannot be right


def refused(source: str, folder: Path, *words: str) -> str:
    """The reader's error, which must be one DataError with these words."""
    with pytest.raises(DataError) as caught:
        read(SOURCES[source], folder)
    message = str(caught.value)
    assert all(word in message for word in words), message
    return message


def test_missing_dataset_says_how_to_get_it(tmp_path: Path) -> None:
    for name in ("cifar10", "cifar100", "mnist", "fashion-mnist", "notmnist"):
        refused(name, tmp_path, str(tmp_path), f"afaf data get {name}", "AFAF_DATA")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda content: content[:-1], "truncated"),
        (lambda content: b"", "empty"),
        (lambda content: content[:-3073] + bytes([200]) + content[-3072:], "label 200"),
        (lambda content: content * 600, "published file has 10000"),
    ],
)
def test_bad_cifar(tmp_path: Path, damage, word: str) -> None:
    makers.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    refused("cifar10", tmp_path, str(path), word, "replace")


def test_a_missing_or_strange_batch_file_is_named(tmp_path: Path) -> None:
    makers.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.unlink()
    refused("cifar10", tmp_path, str(path), "no such file")
    path.mkdir()
    refused("cifar10", tmp_path, str(path))


def test_cifar_that_shrinks_between_labels_and_images(tmp_path: Path) -> None:
    makers.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    records = cifar_records([path], 1, 10, 100)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match="ended while it was read"):
        list(records.chunks())


def idx_with(folder: Path, images: bytes, labels: bytes) -> None:
    makers.idx(folder / "mnist")
    for name, content in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / "mnist" / f"train-{name}-ubyte.gz").write_bytes(content)


GOOD_IMAGES, GOOD_LABELS = makers.idx_bytes(makers.pixels(4, 28, 28)), makers.idx_bytes(np.arange(4, dtype=np.uint8))


@pytest.mark.parametrize(
    ("images", "labels", "file", "word"),
    [
        (
            struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 28, 28) + b"x" * 784,
            GOOD_LABELS,
            "images",
            f"promises {2**31} records, but the published",
        ),
        (GOOD_IMAGES, struct.pack(">BBBBI", 0, 0, 8, 1, 2**32 - 1) + b"x", "labels", f"promises {2**32 - 1} records, but the published"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 4, 2**16, 2**16), GOOD_LABELS, "images", "65536x65536"),
        (GOOD_IMAGES[:-1], GOOD_LABELS, "images", "truncated"),
        (GOOD_IMAGES + b"x", GOOD_LABELS, "images", "longer than its header"),
        (GOOD_IMAGES, GOOD_LABELS[:-1], "labels", "truncated"),
        (GOOD_IMAGES, GOOD_LABELS + b"x", "labels", "longer than its header"),
        (GOOD_IMAGES, GOOD_LABELS[:-1] + bytes([200]), "labels", "label 200"),
        (GOOD_IMAGES, makers.idx_bytes(np.arange(3, dtype=np.uint8)), "images", "not of one dataset"),
        (b"", GOOD_LABELS, "images", "empty"),
        (b"\x00\x00\x0d\x03" + GOOD_IMAGES[4:], GOOD_LABELS, "images", "not an IDX file"),
        (b"<html>not found</html>", GOOD_LABELS, "images", "not an IDX file"),
        (gzip.compress(GOOD_IMAGES)[:-500], GOOD_LABELS, "images", "replace"),
        (gzip.compress(GOOD_IMAGES)[:40] + b"\xff" * 900, GOOD_LABELS, "images", "replace"),
    ],
)
def test_bad_idx(tmp_path: Path, images: bytes, labels: bytes, file: str, word: str) -> None:
    idx_with(tmp_path, images, labels)
    refused("mnist", tmp_path, f"train-{file}", word)


def test_idx_promises_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """A gzip bomb behind a header that promises no more than is published: memory stays at a chunk's size."""
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 4, 28, 28)
    content = bomb.compress(header) + b"".join(bomb.compress(bytes(1 << 20)) for _ in range(100)) + bomb.flush()
    idx_with(tmp_path, content, gzip.compress(GOOD_LABELS))
    tracemalloc.start()
    refused("mnist", tmp_path, "longer than its header")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    ("info", "word"),
    [
        (member("/etc/A/x.png"), "outside the data folder"),
        (member("notMNIST_small/A/../../../x.png"), "outside the data folder"),
        (member("notMNIST_small/A/x.png", tarfile.SYMTYPE, link="/etc/passwd"), "link"),
        (member("notMNIST_small/A/x.png", tarfile.LNKTYPE, link="notMNIST_small/A/0000.png"), "link"),
        (member("notMNIST_small/A/x.png", tarfile.FIFOTYPE), "device"),
        (member("notMNIST_small/A/x.png", tarfile.CHRTYPE), "device"),
    ],
)
def test_hostile_members(tmp_path: Path, info: tarfile.TarInfo, word: str) -> None:
    makers.tar_gz(tmp_path / ARCHIVE, makers.letters(1), [info])
    refused("notmnist", tmp_path, ARCHIVE, word)


def raw_tar(path: Path, *headers: tarfile.TarInfo, zeros: int = 0) -> None:
    """A tar.gz of headers alone, followed by zeros: whatever the headers promise."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for header in headers:
            file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(zeros):
            file.write(bytes(1 << 20))


@pytest.mark.parametrize(
    ("header", "zeros"),
    [
        (member("notMNIST_small/A/x.png", size=1 << 40), 0),
        (member("notMNIST_small/A/x.png", size=1 << 28), 256),
        (member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 27), 128),
        (member("pax", tarfile.XHDTYPE, size=1 << 27), 128),
        (member("pax", tarfile.XGLTYPE, size=1 << 33), 1),
        (member("notMNIST_small/A/x.png", size=-512), 1),
        (member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=-1024), 1),
    ],
)
def test_tar_headers_that_promise_too_much(tmp_path: Path, header: tarfile.TarInfo, zeros: int) -> None:
    raw_tar(tmp_path / ARCHIVE, header, zeros=zeros)
    tracemalloc.start()
    refused("notmnist", tmp_path, ARCHIVE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_too_many_members_and_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers.tar_gz(tmp_path / ARCHIVE, makers.letters(2))
    limits = SOURCES["notmnist"].open.__globals__["LIMITS"]
    for tight, word in ((limits.__class__(19, 65536, 1 << 26), "more than 19"), (limits.__class__(99, 65536, 9000), "9000 bytes")):
        monkeypatch.setattr("afaf.streams.sources.notmnist.LIMITS", tight)
        refused("notmnist", tmp_path, ARCHIVE, word)


def test_png_bomb_among_the_letters_is_not_decoded(tmp_path: Path) -> None:
    rows = zlib.compress(b"\0" * (20000 * 2501), 9)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    makers.tar_gz(tmp_path / ARCHIVE, {**makers.letters(1), "notMNIST_small/A/bomb.png": bomb})
    tracemalloc.start()
    records = SOURCES["notmnist"].records(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert records["train"].skipped == ("notMNIST_small/A/bomb.png",)
    assert peak < 8 << 20


def test_wrong_files_under_the_archive_name(tmp_path: Path) -> None:
    path = tmp_path / ARCHIVE
    for content in (b"", b"<html>gone</html>", gzip.compress(b"not a tar at all"), gzip.compress(bytes(2048))):
        path.write_bytes(content)
        refused("notmnist", tmp_path, ARCHIVE)
    makers.tar_gz(path, makers.letters(2))
    path.write_bytes(path.read_bytes()[:2000])
    refused("notmnist", tmp_path, ARCHIVE)
    path.unlink()
    (tmp_path / "notMNIST_small").mkdir()
    refused("notmnist", tmp_path, "notMNIST_small", "no readable letter")


def test_readers_write_nothing(tmp_path: Path) -> None:
    makers.cifar10(tmp_path)
    makers.tar_gz(tmp_path / ARCHIVE, makers.letters(1))
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    read(SOURCES["cifar10"], copy)
    SOURCES["notmnist"].records(copy)
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == before


def test_idx_records_names_both_files_when_they_disagree(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(GOOD_IMAGES)
    (tmp_path / "b").write_bytes(makers.idx_bytes(np.arange(9, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"a promises 4 images, but .*b has 9 labels"):
        idx_records(tmp_path / "a", tmp_path / "b", 10, 100)


@pytest.mark.parametrize("header", ["path,label\n", ""])
def test_a_manifest_written_by_excel_is_read(header: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "images.csv").write_text(f"{header}a.png,red\n", encoding="utf-8-sig")  # with a byte-order mark
    assert manifest_files(tmp_path / "images.csv") == [(tmp_path / "a.png", "red")]
