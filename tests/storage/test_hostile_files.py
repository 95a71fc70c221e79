"""Damaged and hostile files, model and checkpoint: one typed error, in bounded time and memory, whatever was done to them."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afaf.errors import FileError, StoppedError
from afaf.network.spec import Layer, NetworkSpec
from afaf.runs.checkpoint import load_checkpoint
from afaf.runs.events import EpochEnded, Event
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.runs.stop import StopToken
from afaf.storage.container import NO_SUM, encode
from afaf.storage.model_file import Model
from conftest import small_stream

SECONDS = 5.0  # far more than any file here needs, far less than a hang
MEMORY = 64 << 20  # bytes beyond what was in use; the files have less than 2 MB


class StopAfter:
    """Asks a run to stop after so many epochs."""

    def __init__(self, stop: StopToken, epochs: int):
        self.stop, self.epochs = stop, epochs

    def __call__(self, event: Event) -> None:
        self.epochs -= isinstance(event, EpochEnded)
        if self.epochs == 0:
            self.stop.ask()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, a checkpoint between two tasks, and one within a task."""
    folder = tmp_path_factory.mktemp("files")
    quick = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp", "network.norm": "batch"}
    stream, stop = small_stream([2, 2]), StopToken()
    with pytest.raises(StoppedError):
        run(Job(stream, "afaf", device="cpu", settings=quick, out=folder / "run"), stop=stop, on_event=StopAfter(stop, 3))
    checkpoints = sorted((folder / "run" / "checkpoints").iterdir())
    results = run(Job(stream, "afaf", device="cpu", settings=quick))
    assert results.model is not None
    results.model.save(folder / "model.safetensors")
    return {"model": folder / "model.safetensors", "between": checkpoints[0], "within": checkpoints[1]}


def load(kind: str, path: Path) -> None:
    if kind == "model":
        Model.load(path)
    else:
        load_checkpoint(path, torch.device("cpu"))


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: dict[str, Any], payload: bytes) -> bytes:
    """A file with this header, and a checksum that fits: what someone would make who knows the format."""
    about = re.sub('"sha256": "[0-9a-f]{64}", ', "", header["__metadata__"]["afaf"])
    header["__metadata__"] = {"afaf": about, "sha256": NO_SUM}  # where earlier versions had it, which is still read
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + payload
    return data.replace(NO_SUM.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


Mutation = Callable[[bytes, st.DataObject], bytes]


def flip_bits(data: bytes, draw: st.DataObject) -> bytes:
    changed = bytearray(data)
    header = int.from_bytes(data[:8], "little") + 8
    for place in draw.draw(
        st.lists(st.one_of(st.integers(0, header - 1), st.integers(0, len(data) - 1)), min_size=1, max_size=4, unique=True)
    ):
        changed[place] ^= 1 << draw.draw(st.integers(0, 7))
    return bytes(changed)


def truncate(data: bytes, draw: st.DataObject) -> bytes:
    return data[: draw.draw(st.integers(0, len(data) - 1))]


def extend(data: bytes, draw: st.DataObject) -> bytes:
    return data + draw.draw(st.binary(min_size=1, max_size=64))


def huge_header(data: bytes, draw: st.DataObject) -> bytes:
    return draw.draw(st.integers(len(data), (1 << 64) - 1)).to_bytes(8, "little") + data[8:]


def wrong_shape(data: bytes, draw: st.DataObject) -> bytes:
    header, payload = split(data)
    name = draw.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    shape = header[name]["shape"]
    header[name]["shape"] = draw.draw(
        st.sampled_from([[*shape, 2], shape[:-1], [1 << 40], [-1, *shape], [1 << 70], "x", None, [0.5], [True], [[1]]])
    )
    return joined(header, payload)


def swapped_tensors(data: bytes, draw: st.DataObject) -> bytes:
    """Two tensors of different shapes under each other's names; of those whose shapes the network settles."""
    header, payload = split(data)
    names = sorted(name for name in header if not name.startswith(("__metadata__", "record/", "memory/")))
    one = draw.draw(st.sampled_from(names))
    other = draw.draw(st.sampled_from([n for n in names if header[n]["shape"] != header[one]["shape"]]))
    header[one], header[other] = header[other], header[one]
    return joined(header, payload)


def swapped_bytes(data: bytes, draw: st.DataObject) -> bytes:
    """Two tensors exchanged where they lie, the checksum as it was."""
    header, payload = split(data)
    places = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__" and entry["data_offsets"][1] > 0)
    parts = [payload[a:b] for a, b in places]
    i = draw.draw(st.integers(0, len(parts) - 2))
    j = draw.draw(st.integers(i + 1, len(parts) - 1))
    if parts[i] == parts[j]:
        return flip_bits(data, draw)
    parts[i], parts[j] = parts[j], parts[i]
    return data[: len(data) - len(payload)] + b"".join(parts)


def missing_tensor(data: bytes, draw: st.DataObject) -> bytes:
    header, payload = split(data)
    name = draw.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    header[draw.draw(st.sampled_from(["owner/77", "x", "memory/x/../y", "record/9/free/1", "own/99", "importance/places/0"]))] = header.pop(
        name
    )
    return joined(header, payload)


NONSENSE = st.sampled_from([None, -1, 1 << 40, 1 << 62, 0.5, "x", [], {}, [None], {"x": 1}, True, [[]], "9" * 5000, ["x"] * 3, [1 << 33]])


def nonsense_in_description(data: bytes, draw: st.DataObject) -> bytes:
    """Any value of the description replaced by something else."""
    header, payload = split(data)
    about = json.loads(header["__metadata__"]["afaf"])
    place, path = about, []
    while True:
        key = draw.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        path.append(key)
        if not isinstance(place[key], (dict, list)) or not place[key] or draw.draw(st.booleans()):
            break
        place = place[key]
    place[key] = draw.draw(NONSENSE)
    header["__metadata__"]["afaf"] = json.dumps(about)
    return joined(header, payload)


ALWAYS_REFUSED: dict[str, Mutation] = {
    "bit flips": flip_bits,
    "truncation": truncate,
    "more at the end": extend,
    "huge header": huge_header,
    "wrong shape": wrong_shape,
    "swapped tensors": swapped_tensors,
    "swapped bytes": swapped_bytes,
    "missing tensor": missing_tensor,
}


def bounded(kind: str, path: Path) -> bool:
    """Load a file; whether it was refused, with the typed error. Anything else, or much time or memory, is a failure."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    tracemalloc.start()
    refused, words = False, ""
    try:
        load(kind, path)
    except FileError as error:
        refused, words = True, str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert not refused or (str(path) in words and len(words) < 1000)
    assert time.process_time() - started < SECONDS
    assert peak < MEMORY
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY >> 10
    return refused


def mutate(files: dict[str, Path], folder: Path, draw: st.DataObject) -> None:
    kind = draw.draw(st.sampled_from(sorted(files)))
    name = draw.draw(st.sampled_from([*ALWAYS_REFUSED, "nonsense in the description"]))
    mutation = ALWAYS_REFUSED.get(name, nonsense_in_description)
    original, path = files[kind].read_bytes(), folder / "mutated.safetensors"
    changed = mutation(original, draw)
    path.write_bytes(changed)
    refused = bounded(kind, path)
    if name in ALWAYS_REFUSED and changed != original:
        assert refused, f"{name} of a {kind} file went unnoticed"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_mutated_files_end_in_one_typed_error(
    files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    mutate(files, tmp_path_factory.getbasetemp(), draw)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_two_thousand_mutated_files_end_in_one_typed_error(
    files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    mutate(files, tmp_path_factory.getbasetemp(), draw)


@pytest.mark.parametrize("kind", ["model", "between", "within"])
def test_the_files_as_they_are_load(files: dict[str, Path], kind: str) -> None:
    assert not bounded(kind, files[kind])


@pytest.mark.parametrize(
    "about", ["[" * 100_000, '{"format": 1' + "0" * 5000 + "}", '{"format": NaN}', '{"a": 1, "a": 2}', "nonsense", "{}"]
)
def test_descriptions_that_are_traps_for_a_parser(about: str, tmp_path: Path) -> None:
    data = joined({"__metadata__": {"afaf": about}}, b"")
    (tmp_path / "trap.safetensors").write_bytes(data)
    assert bounded("model", tmp_path / "trap.safetensors")


def test_a_header_that_promises_terabytes(tmp_path: Path) -> None:
    """The tensors must be in the file before memory is asked for them."""
    path = tmp_path / "trap.safetensors"
    entry = {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}
    path.write_bytes(joined({"__metadata__": {"afaf": '{"format": 2}'}, "bias/1": entry}, b""))
    assert bounded("model", path)


def test_a_description_that_would_take_for_ever_to_go_through(files: dict[str, Path], tmp_path: Path) -> None:
    header, payload = split(files["model"].read_bytes())
    about = json.loads(header["__metadata__"]["afaf"])
    layer = {"kind": "dense", "neurons": 1, "then": [], "kernel": 1}
    learner = about["learner"]
    learner["network"] |= {"hidden": [layer] * 3_000, "n_classes": 3_000}
    learner["classes_of"] = {str(task): [task - 1] for task in range(1, 3_001)}
    learner["snapshots"] = list(range(1, 3_001))
    header["__metadata__"]["afaf"] = json.dumps(about)
    path = tmp_path / "trap.safetensors"
    path.write_bytes(joined(header, payload))
    assert bounded("model", path)


def test_a_small_file_cannot_ask_for_a_huge_network(tmp_path: Path) -> None:
    """Filters of 4,000 x 4,000 pixels: gigabytes of weights, none of which is owned and so none in the file."""
    spec = NetworkSpec("huge", (1, 4001, 4001), (Layer("conv", 40, ("relu",), 4000),), 2)
    about = {"format": 2, "kind": "model", "stream": "", "method": "", "class_names": [], "preparations": [], "config": {}}
    about["learner"] = {"network": spec.to_dict(), "dtype": "F32", "seed": 0, "unit": "connection", "keeps_past": True, "classes_of": {}}
    about["learner"] |= {"tasks_learned": 0, "snapshots": [], "records": [], "memory": []}
    tensors = {f"fixed/{l}": torch.zeros(layer.size, dtype=torch.int16) for l, layer in enumerate(spec.layers, 1)}
    for l, edge in enumerate(spec.edges, 1):
        tensors |= {f"owner/{l}": torch.zeros(edge.outputs, edge.inputs, 1, dtype=torch.int16), f"weights/{l}": torch.zeros(0)}
        tensors[f"bias/{l}"] = torch.zeros(edge.outputs)
    path = tmp_path / "trap.safetensors"
    path.write_bytes(encode(tensors, about))
    assert bounded("model", path)
    with pytest.raises(FileError, match="far larger than the file"):
        Model.load(path)


@pytest.mark.parametrize(
    "then", [[], ["dropout"], ["relu", "relu"], ["relu", "pool", "pool"], ["softmax"], "relu", {"relu": 1, "relu2": 1}, 3]
)
@pytest.mark.parametrize("layer", [0, 1])
def test_operations_that_no_layer_has_are_a_file_error(files: dict[str, Path], tmp_path: Path, then: Any, layer: int) -> None:
    header, payload = split(files["model"].read_bytes())
    about = json.loads(header["__metadata__"]["afaf"])
    about["learner"]["network"]["hidden"][layer]["then"] = then
    header["__metadata__"]["afaf"] = json.dumps(about)
    path = tmp_path / "forged.safetensors"
    path.write_bytes(joined(header, payload))
    with pytest.raises(FileError, match=str(path)):
        Model.load(path)
