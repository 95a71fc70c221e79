"""Verification looks at the decoded images alone: packing and missing classes do not matter, one changed pixel does."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afaf.errors import DataError
from afaf.streams.benchmarks import load_groups
from afaf.streams.sources import SOURCES, Source
from afaf.streams.sources import verify as remembered
from afaf.streams.sources.verify import inspect
from streams import makers


@pytest.fixture
def cifar(tmp_path: Path) -> Source:
    makers.cifar10(tmp_path)
    return makers.as_published(SOURCES["cifar10"], tmp_path)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_the_published_copy_is_verified(tmp_path: Path, cifar: Source) -> None:
    found = inspect(cifar, tmp_path)
    assert (found.state, found.total("train"), found.total("test")) == ("verified", 100, 20)
    assert found.counts["train"]["cat"] == 10
    assert found.size == 6 * 20 * 3073
    load_groups(cifar, tmp_path, [(0, 1), (2,)])


@pytest.mark.parametrize("file", ["data_batch_4.bin", "test_batch.bin"])
@pytest.mark.parametrize("at", [1, 3072, 3073 * 7 + 500])
def test_one_changed_bit_is_found(tmp_path: Path, cifar: Source, file: str, at: int) -> None:
    path = tmp_path / "cifar-10-batches-bin" / file
    label = path.read_bytes()[at // 3073 * 3073]
    flip(path, at)
    found = inspect(cifar, tmp_path)
    assert found.state == "damaged"
    assert cifar.class_names[label] in found.note
    with pytest.raises(DataError, match=rf"{cifar.class_names[label]} are not those published as CIFAR-10.*afaf data get cifar10"):
        load_groups(cifar, tmp_path, [(label,)])
    load_groups(cifar, tmp_path, [((label + 1) % 10,)])  # the other classes are as published


def test_a_changed_label_is_found(tmp_path: Path, cifar: Source) -> None:
    flip(tmp_path / "cifar-10-batches-bin/data_batch_1.bin", 0)
    assert inspect(cifar, tmp_path).state == "damaged"


def test_a_copy_in_another_order_is_verified(tmp_path: Path, cifar: Source) -> None:
    path = tmp_path / "cifar-10-batches-bin/data_batch_1.bin"
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)
    path.write_bytes(records[::-1].tobytes())
    assert inspect(cifar, tmp_path).state == "verified"


def test_a_copy_packed_otherwise_is_verified(tmp_path: Path) -> None:
    makers.idx(tmp_path / "mnist")
    source = makers.as_published(SOURCES["mnist"], tmp_path)
    for path in list((tmp_path / "mnist").iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert inspect(source, tmp_path).state == "verified"


def test_a_copy_without_some_classes_is_partial(tmp_path: Path, cifar: Source) -> None:
    for path in (tmp_path / "cifar-10-batches-bin").iterdir():
        records = np.fromfile(path, np.uint8).reshape(-1, 3073)
        path.write_bytes(records[records[:, 0] < 4].tobytes())
    found = inspect(cifar, tmp_path)
    assert (found.state, found.note) == ("partial", "4 of 10 classes, verified")
    assert list(found.counts["train"]) == ["airplane", "automobile", "bird", "cat"]
    load_groups(cifar, tmp_path, [(3, 0)])
    with pytest.raises(DataError, match="no images of frog"):
        load_groups(cifar, tmp_path, [(3, 6)])


def test_a_class_cut_short_is_damage(tmp_path: Path, cifar: Source) -> None:
    path = tmp_path / "cifar-10-batches-bin/data_batch_5.bin"
    path.write_bytes(path.read_bytes()[: 3073 * 19])
    assert inspect(cifar, tmp_path).state == "damaged"


def test_unreadable_files_make_a_damaged_dataset_not_a_crash(tmp_path: Path, cifar: Source) -> None:
    (tmp_path / "cifar-10-batches-bin/data_batch_2.bin").write_bytes(b"x" * 5000)
    found = inspect(cifar, tmp_path)
    assert found.state == "damaged"
    assert "data_batch_2.bin" in found.note
    assert inspect(cifar, tmp_path / "nowhere").state == "missing"


def test_recorded_digests_cover_every_source() -> None:
    for source in SOURCES.values():
        assert set(source.digests) == {f"{part}/{name}" for part in ("train", "test") for name in source.class_names}
    assert all(len(digest) == 64 for source in SOURCES.values() for digest in source.digests.values())


# --- what is remembered of the last look


def test_a_look_is_remembered_until_a_file_changes(tmp_path: Path, cifar: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(remembered, "inspect", lambda *args: looks.append(args) or inspect(*args))
    first = remembered.inspect_remembered(cifar, tmp_path)
    assert remembered.inspect_remembered(cifar, tmp_path) == first
    assert len(looks) == 1
    flip(tmp_path / "cifar-10-batches-bin/data_batch_1.bin", 5)
    assert remembered.inspect_remembered(cifar, tmp_path).state == "damaged"
    remembered.inspect_anew(cifar, tmp_path)
    assert len(looks) == 3
    other = replace(cifar, digests=dict.fromkeys(cifar.digests, "0" * 64))
    assert other.class_names[0] in remembered.inspect_remembered(other, tmp_path).note  # other digests, another verdict


@pytest.mark.parametrize("notes", ["", "[]", "{", '{"a": 3}', "null"])
def test_spoiled_notes_cost_only_time(tmp_path: Path, cifar: Source, notes: str) -> None:
    remembered.inspect_anew(cifar, tmp_path)
    remembered._note(cifar, tmp_path).write_text(notes)
    assert remembered.inspect_remembered(cifar, tmp_path).state == "verified"
