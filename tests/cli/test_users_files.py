"""Nothing of the user's is touched, and nothing hangs: every command, with files that are not its own in its way."""

from __future__ import annotations

import io
import os
import shutil
import signal
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from afaf.cli.main import app
from forks import Forks

RUN = ["--device", "cpu", "--set", "learn.epochs=1", "--set", "learn.batch_size=64", "--set", "network.name=mlp"]
NEW = ["--size", "8", "--grey", "--network", "mlp", "--epochs", "1", "--device", "cpu", "--max-tasks", "3"]


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A command that hangs fails, instead of hanging the tests."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the command hangs")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)


def write_images(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8), 40 * number + 10 * i).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and a model of two classes."""
    folder = tmp_path_factory.mktemp("made")
    assert call("run", "split-digits", "finetune", "--out", folder / "run", *RUN).exit_code == 0
    assert call("learn", write_images(folder / "images", "a", "b"), "--model", folder / "model", *NEW).exit_code == 0
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """Copies that a test may change."""
    shutil.copytree(made, tmp_path / "own", symlinks=True)
    return tmp_path / "own"


def everything(folder: Path) -> dict[str, Any]:
    """All that lies in a folder: contents, or what else it is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        mode = os.lstat(path).st_mode
        regular = stat.S_ISREG(mode)
        found[str(path.relative_to(folder))] = (
            path.read_bytes() if regular else os.readlink(path) if path.is_symlink() else stat.S_IFMT(mode)
        )
    return found


def refused(result: Result, code: int = 2) -> None:
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)


# A run folder is new or empty.


@pytest.mark.parametrize(
    "name", ["checkpoints/llama.safetensors", ".notes.part.txt", "log.jsonl", "ledger.png", "tensorboard/events", ".lock"]
)
def test_a_run_does_not_begin_among_the_users_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = everything(tmp_path)
    for more in ([], ["--tensorboard"]):
        refused(call("run", "split-digits", "finetune", "--out", tmp_path, *RUN, *more))
        assert everything(tmp_path) == before


KILLED = "import os, signal; os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)"  # as it is about to rename a file


def test_what_a_killed_start_left_counts_as_nothing(tmp_path: Path, forks: Forks) -> None:
    killed = forks.run(["run", "split-digits", "finetune", "--out", str(tmp_path), *RUN], tmp_path, first=KILLED)
    assert killed.returncode == -signal.SIGKILL
    assert {name.partition("-")[0] for name in everything(tmp_path)} == {".lock", ".afaf"}
    result = call("run", "split-digits", "finetune", "--out", tmp_path, *RUN, "--tensorboard")
    assert result.exit_code == 0, result.output
    assert not [name for name in everything(tmp_path) if "part" in name]
    assert any((tmp_path / "tensorboard").iterdir())


def test_of_checkpoints_only_those_of_the_run_are_removed(made: Path, tmp_path: Path) -> None:
    """Copies that the user made stay, though they are checkpoints too; so do other programs' files."""
    shutil.copytree(made / "run", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    first = sorted(folder.iterdir())[0]
    for name in ("results.json", "model.safetensors", "ledger.png", "r-matrix.png"):
        (tmp_path / "run" / name).unlink()
    for checkpoint in sorted(folder.iterdir())[1:]:
        checkpoint.unlink()
    own = {"best.safetensors": first.read_bytes(), "llama.safetensors": b"other", "000001.safetensors": b"other", ".x.part": b"mine"}
    for name, content in own.items():
        (folder / name).write_bytes(content)
    result = call("run", "--resume", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert {name: (folder / name).read_bytes() for name in own} == own
    assert len(list(folder.iterdir())) <= len(own) + 4


def test_a_folder_of_another_program_is_not_resumed(tmp_path: Path) -> None:
    """Many programs have a config.json; nothing is locked or tidied there."""
    for name, content in {"config.json": '{"model_type": "llama"}', "model.safetensors": "weights", ".lock": "theirs"}.items():
        (tmp_path / name).write_text(content)
    before = everything(tmp_path)
    refused(call("run", "--resume", tmp_path))
    refused(call("run", "split-digits", "finetune", "--out", tmp_path, *RUN))
    assert everything(tmp_path) == before


# No link leads out of a run folder.


@pytest.mark.parametrize("name", [".lock", "log.jsonl", "checkpoints", "config.json", "results.json", "model.safetensors", "tensorboard"])
def test_links_out_of_a_run_folder_are_not_followed(name: str, own: Path) -> None:
    run, precious = own / "run", own / "precious"
    for unwanted in ("results.json", "model.safetensors"):
        if unwanted != name:
            (run / unwanted).unlink()
    if name == "checkpoints":
        (run / name).rename(precious)
    elif (run / name).exists():
        (run / name).replace(precious)
    else:
        precious.write_bytes(b"")
    if name == ".lock":
        precious.write_text("precious")
    (run / name).symlink_to("../precious")
    before = everything(own)
    for command in (["run", "--resume", run], ["doctor", run], ["report", run]):
        result = call(*command)
        assert result.exit_code in (1, 2), (command, result.output)
        assert isinstance(result.exception, SystemExit)
    assert everything(own) == before


def test_a_lock_that_is_no_lock_stays_as_it_is(own: Path) -> None:
    """A hard link cannot be told from a file: its content can."""
    (own / "precious").write_text("precious")
    (own / "run" / ".lock").unlink(missing_ok=True)
    (own / "run" / ".lock").hardlink_to(own / "precious")
    refused(call("run", "--resume", own / "run"))
    assert (own / "precious").read_text() == "precious"


# An output replaces nothing but an output.


def outputs(own: Path, place: Path) -> dict[str, list[Any]]:
    """Every command that writes a file that the user names."""
    return {
        "report": ["report", own / "run", "--out", place],
        "picture": ["inspect", own / "model", "--picture", place],
        "onnx": ["export", own / "model", "--onnx", place],
        "torch": ["export", own / "model", "--torch", place],
        "sheet": ["streams", f"folder:{own / 'images'}", "--out", place],
    }


@pytest.mark.parametrize("command", ["report", "picture", "onnx", "torch", "sheet"])
def test_a_file_of_the_users_is_replaced_only_if_that_is_asked_for(command: str, own: Path, tmp_path: Path) -> None:
    place = tmp_path / "file.png"
    call_it = outputs(own, place)[command]
    for content in (b"mine", b"", (own / "model").read_bytes()):
        place.write_bytes(content)
        result = call(*call_it)
        refused(result)
        assert "--force" in result.output
        assert place.read_bytes() == content
    assert call(*call_it, "--force").exit_code == 0
    written = place.read_bytes()
    assert written != content
    result = call(*call_it)  # its own output
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["report", "picture", "onnx", "torch", "sheet"])
def test_an_output_written_to_a_device_leaves_the_device(command: str, own: Path, tmp_path: Path) -> None:
    device = tmp_path / "device.png"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("this user may not make devices")
    result = call(*outputs(own, device)[command])
    assert result.exit_code == 0, result.output
    assert stat.S_ISCHR(os.lstat(device).st_mode)


def test_an_input_is_never_replaced(own: Path) -> None:
    """Not even by force."""
    for name in ("m.html", "m.png", "m.onnx"):
        shutil.copy(own / "model", own / name)
    before = everything(own)
    commands: list[list[Any]] = [
        ["inspect", own / "m.html", "--html"],
        ["inspect", own / "m.png", "--picture", own / "m.png"],
        ["export", own / "m.onnx", "--onnx", own / "m.onnx"],
        ["export", own / "model", "--torch", own / "images" / "a" / "0.png", "--images", own / "images"],
        ["report", own / "run", "--out", own / "run" / "results.json"],
        ["report", own / "run", "--out", own / "run" / "log.jsonl"],
        ["report", own, "--out", own / "run" / "config.json"],
        ["streams", f"folder:{own / 'images'}", "--out", own / "images" / "a" / "0.png"],
    ]
    for command in commands:
        refused(call(*command, "--force"))
        assert everything(own) == before, command


def test_figures_replace_figures_only(own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "ledger.svg").write_text("mine")
    refused(call("report", own / "run", "--figures", folder))
    assert everything(folder) == {"ledger.svg": b"mine"}
    assert call("report", own / "run", "--figures", folder, "--force").exit_code == 0
    assert (folder / "ledger.svg").read_bytes() != b"mine"
    result = call("report", own / "run", "--figures", folder)
    assert result.exit_code == 0, result.output


# A model file, and what lies beside it.


def test_learning_leaves_the_users_backup_alone(own: Path) -> None:
    for content in (b"mine", (own / "model").read_bytes()):
        (own / "model.bak").write_bytes(content)
        name = f"c{len(content)}"
        result = call("learn", write_images(own / name, name), "--model", own / "model", "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert (own / "model.bak").read_bytes() == content


def test_what_a_killed_learn_left_is_removed_by_the_next(own: Path, forks: Forks) -> None:
    images, before = write_images(own / "more", "c"), everything(own)
    command = ["learn", images, "--model", own / "model", "--device", "cpu"]
    killed = forks.run(list(map(str, command)), own, first=KILLED)
    assert killed.returncode == -signal.SIGKILL
    assert len(everything(own)) > len(before)
    result = call(*command)
    assert result.exit_code == 0, result.output
    assert everything(own).keys() == before.keys() | {f"more/c/{i}.png" for i in range(4)} | {"more", "more/c"}


def test_a_model_is_not_saved_over_another_programs_file(own: Path) -> None:
    from afaf import AFAFClassifier
    from afaf.errors import AfafError

    model = AFAFClassifier.load(own / "model")
    (own / "llama.safetensors").write_bytes(b"weights")
    with pytest.raises(AfafError):
        model.save(own / "llama.safetensors")
    assert (own / "llama.safetensors").read_bytes() == b"weights"
    model.save(own / "model")


# Pipes do not hang, bombs do not burst.


def test_a_pipe_in_place_of_a_file_is_refused_at_once(own: Path) -> None:
    pipe = own / "pipe.png"
    os.mkfifo(pipe)
    images = write_images(own / "more", "c")
    os.mkfifo(images / "c" / "pipe.png")
    runs = {name: own / f"run-{name}" for name in ("config.json", "results.json", "log.jsonl", "model.safetensors", ".lock")}
    for name, run in runs.items():
        shutil.copytree(own / "run", run)
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    checkpoint = own / "run-checkpoint"
    shutil.copytree(own / "run", checkpoint)
    (checkpoint / "results.json").unlink()
    newest = sorted((checkpoint / "checkpoints").iterdir())[-1]
    newest.unlink()
    os.mkfifo(newest)
    commands: list[list[Any]] = [
        ["inspect", pipe],
        ["doctor", pipe],
        ["predict", own / "images", "--model", pipe],
        ["predict", pipe, "--model", own / "model"],
        ["learn", own / "images", "--model", pipe],
        ["learn", images, "--model", own / "model"],
        ["run", "split-digits", "finetune", "--config", pipe, "--out", own / "new"],
        ["run", f"npz:{pipe}", "finetune", "--out", own / "new"],
        ["run", f"folder:{images}", "finetune", "--out", own / "new"],
        ["run", f"folder:{own / 'images'}", "finetune", "--set", f"stream.order={pipe}", "--out", own / "new"],
        *(["run", "--resume", run] for name, run in runs.items() if name != "log.jsonl"),
        *(["report", run] for name, run in runs.items() if name != ".lock"),
        *(["doctor", run] for name, run in runs.items() if name not in (".lock",)),
        ["doctor", checkpoint],
    ]
    for command in commands:
        signal.alarm(60)
        result = call(*command)
        assert not isinstance(result.exception, TimeoutError), command
        if command[:2] != ["run", "--resume"] or "model" not in str(command[2]):  # a finished run needs no model
            assert result.exit_code in (1, 2), (command, result.output)
            assert isinstance(result.exception, SystemExit), (command, result.exception)
    assert not (own / "new").exists()


def test_a_run_folder_that_was_removed_is_told_so(tmp_path: Path) -> None:
    from afaf import run
    from afaf.errors import WriteError
    from afaf.runs.events import EpochEnded, Event

    def remove(event: Event) -> None:
        if isinstance(event, EpochEnded):
            shutil.rmtree(tmp_path / "run")

    settings = {"learn.epochs": 1, "learn.batch_size": 64, "network.name": "mlp"}
    with pytest.raises(WriteError) as told:
        run("split-digits", "finetune", device="cpu", out=tmp_path / "run", settings=settings, on_event=remove)
    assert "still there" not in str(told.value)
    assert str(tmp_path / "run") in str(told.value)


def zeros_npz(path: Path, count: int) -> Path:
    """A deflated array of bytes, all 0, written without ever being in memory."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (count // 1000, 1000)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x_train.npy", "w") as file:
            file.write(header.getvalue())
            for _ in range(count // 10**6):
                file.write(bytes(10**6))
        labels = io.BytesIO()
        np.save(labels, np.arange(count // 1000) % 2)
        archive.writestr("y_train.npy", labels.getvalue())
    return path


def test_an_array_that_unpacks_to_far_more_than_its_file_is_refused(tmp_path: Path) -> None:
    bomb = zeros_npz(tmp_path / "bomb.npz", 400 * 10**6)
    assert bomb.stat().st_size < 1 << 20
    refused(call("run", f"npz:{bomb}", "finetune", "--out", tmp_path / "run", *RUN))


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    return data[:end] + data[last:end] * scans + b"\xff\xd9"


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "bomb.jpg").write_bytes(many_scans(2000, 3000))
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("it is decoded"))
    refused(call("predict", own / "bomb.jpg", "--model", own / "model"))


def test_a_dotted_key_of_forty_kilobytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.toml").write_text(".".join("a" * 20_000) + " = 1")
    refused(call("run", "split-digits", "finetune", "--config", tmp_path / "bomb.toml", "--out", tmp_path / "run"))
