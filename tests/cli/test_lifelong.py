"""A model of one's own images from the command line: learned, asked, changed and exported; and never harmed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from afaf import AFAFClassifier
from afaf.cli import learn as cli_learn
from afaf.cli.learn import Bar, change_classes
from afaf.cli.main import app
from afaf.errors import RunError
from afaf.lifelong import model_store as keeping
from afaf.lifelong.model import Lifelong
from afaf.storage.description import describe
from afaf.storage.state import stored_tensors
from afaf.training.report import EpochReport
from forks import Forks

runner = CliRunner()
MEASURED = Path(__file__).parents[2] / "paper" / "results" / "main.jsonl"
NEW = ["--size", "8", "--grey", "--epochs", "2", "--max-tasks", "5", "--seed", "3", "--device", "cpu"]


def digits(*classes: int, per_class: int = 24) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = load_digits(return_X_y=True)
    chosen = np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in classes])
    return (images[chosen].reshape(-1, 8, 8) * 15).astype(np.uint8), labels[chosen]


def write_folder(path: Path, *classes: int, per_class: int = 24) -> Path:
    for number, (image, label) in enumerate(zip(*digits(*classes, per_class=per_class), strict=True)):
        (path / f"digit-{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"digit-{label}" / f"{number:04d}.png")
    return path


def call(*arguments: Any) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with part-1, part-2 and a model of both."""
    folder = tmp_path_factory.mktemp("own")
    for number, classes in enumerate([(0, 1), (2, 3)], 1):
        write_folder(folder / f"part-{number}", *classes)
        result = call(
            "learn", folder / f"part-{number}", "--model", folder / "m.safetensors", *(NEW if number == 1 else ["--device", "cpu"])
        )
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def own(learned: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(learned, tmp_path / "own")
    return tmp_path / "own"


def test_five_calls_of_learn_are_five_instalments_of_partial_fit(tmp_path: Path) -> None:
    model = AFAFClassifier(max_tasks=5, epochs=2, random_state=3, device="cpu", validation_fraction=0.25)
    for number in range(5):
        classes = (2 * number, 2 * number + 1)
        folder = write_folder(tmp_path / str(number), *classes)
        new = [*NEW, "--validation", 0.25] if number == 0 else ["--device", "cpu"]
        result = call("learn", folder, "--model", tmp_path / "m.safetensors", *new, "--json")
        assert result.exit_code == 0, result.output
        images, labels = digits(*classes)
        model.partial_fit(images, np.char.add("digit-", labels.astype(str)))
    from_folders, from_arrays = Lifelong.load(tmp_path / "m.safetensors"), model._lifelong
    assert describe(from_folders.learner) == describe(from_arrays.learner)
    theirs, ours = stored_tensors(from_folders.learner), stored_tensors(from_arrays.learner)
    assert theirs.keys() == ours.keys()
    assert [name for name in ours if not (theirs[name] == ours[name]).all()] == []
    assert from_folders.life.labels == from_arrays.life.labels
    assert [note.accuracy for note in from_folders.life.tasks] == [note.accuracy for note in from_arrays.life.tasks]
    assert from_folders.temperature == from_arrays.temperature


def test_learn_tells_what_was_learned_and_what_room_is_left(own: Path) -> None:
    result = call("learn", write_folder(own / "part-3", 4), "--model", own / "m.safetensors", "--device", "cpu")
    assert result.exit_code == 0, result.output
    for words in ("task 3 learned: digit-4", "held-out accuracy", "capacity used: conv 1", "2 more tasks of this size fit"):
        assert words in result.output
    assert not (own / "m.safetensors.bak").exists()


def test_learn_says_if_hardly_anything_was_learned(own: Path, tmp_path: Path) -> None:
    result = call("learn", own / "part-1", "--model", tmp_path / "m", *NEW, "--set", "learn.lr=1e-9", "--json")
    assert result.exit_code == 0, result.output
    assert "warning: task 1 was hardly learned" in result.stderr
    assert json.loads(result.stdout)["task"] == 1


def test_predict_in_every_form(learned: Path) -> None:
    images = [learned / "part-1", learned / "part-2" / "digit-2" / "0000.png"]
    model = Lifelong.load(learned / "m.safetensors")
    as_json = json.loads(call("predict", *images, "--model", learned / "m.safetensors", "--json", "--top", 2).stdout)
    assert len(as_json) == 49
    probabilities = model.probabilities(digits(0)[0][..., None])
    for row, expected in zip(as_json, probabilities, strict=False):  # digit-0 comes first
        assert row["label"] == row["top"][0]["label"] == list(model.life.known)[int(expected.argmax())]
        assert [answer["probability"] for answer in row["top"]] == pytest.approx(sorted(expected)[:-3:-1], abs=1e-5)
    rows = list(csv.reader(io.StringIO(call("predict", *images, "--model", learned / "m.safetensors", "--csv").stdout)))
    assert rows[0] == ["file", "label", "top1", "probability1", "top2", "probability2", "top3", "probability3"]
    assert [row[1] for row in rows[1:]] == [row["label"] for row in as_json]
    unsure = json.loads(call("predict", images[1], "--model", learned / "m.safetensors", "--json", "--unknown-below", 1).stdout)
    assert unsure[0]["label"] == "unknown"
    assert "0000.png" in call("predict", images[1], "--model", learned / "m.safetensors").stdout


def test_inspect_shows_tasks_dates_and_capacity(learned: Path, tmp_path: Path) -> None:
    shutil.copy(learned / "m.safetensors", tmp_path)
    facts = json.loads(call("inspect", tmp_path / "m.safetensors", "--json").stdout)
    assert [task["classes"] for task in facts["tasks"]] == [["digit-0", "digit-1"], ["digit-2", "digit-3"]]
    assert facts["tasks_that_fit"] == 3
    assert all(task["learned"].startswith("20") for task in facts["tasks"])
    assert facts["layers"][-1]["fixed"] == 2 * 51  # a fifth of dense 2 each
    assert "digit-3" in call("inspect", tmp_path / "m.safetensors").stdout
    assert call("inspect", tmp_path / "m.safetensors", "--html", "--picture", tmp_path / "ledger.png").exit_code == 0
    page = (tmp_path / "m.html").read_text()
    assert "digit-2, digit-3" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # self-contained
    assert Image.open(tmp_path / "ledger.png").size[0] > 300


def test_classes_are_renamed_and_removed(own: Path) -> None:
    file = own / "m.safetensors"
    result = call("classes", file, "--rename", "digit-0=zero", "--remove", "digit-2", "--remove", "digit-3")
    assert result.exit_code == 0, result.output
    assert "its place is free for another task" in result.output
    assert call("classes", file).stdout.split("\n")[:2] == ["zero  (task 1)", "digit-1  (task 1)"]
    assert Lifelong.load(file).room() == 4
    before = file.read_bytes()
    for wrong, words in (("--rename", "write OLD=NEW"), ("--remove", "knows no class")):
        result = call("classes", file, wrong, "nonsense")
        assert result.exit_code == 2
        assert words in result.output
    assert file.read_bytes() == before


def test_a_class_whose_name_holds_an_equals_sign_is_renamed(own: Path) -> None:
    path = own / "m.safetensors"
    for change, known in (("digit-0=a=b", "a=b"), ("a=b=c=d", "c=d"), ("c=d=zero", "zero"), ("digit-1=zero=0", "zero=0")):
        result = call("classes", path, "--rename", change)
        assert result.exit_code == 0, result.output
        assert known in Lifelong.load(path).life.known
    result = call("classes", path, "--rename", "zero=0=one")
    assert (result.exit_code, "is zero or zero=0 meant?" in result.output) == (2, True)


def test_what_goes_wrong_is_said_and_harms_nothing(own: Path, tmp_path: Path) -> None:
    file, before = own / "m.safetensors", (own / "m.safetensors").read_bytes()
    broken = write_folder(tmp_path / "broken", 5)
    (broken / "digit-5" / "0000.png").write_bytes(b"no image")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    shutil.copy(own / "part-1" / "digit-0" / "0000.png", tmp_path / "flat")
    full = ["--set", "sparse.alloc.output=100"]
    cases: list[tuple[list[Any], str]] = [
        (["learn", tmp_path / "nowhere", "--model", file], "no such folder"),
        (["learn", tmp_path / "flat", "--model", file], "no class folders"),
        (["learn", tmp_path / "empty", "--model", file], "no images"),
        (["learn", broken, "--model", file], "0000.png"),
        (["learn", own / "part-1", "--model", file], "already learned: digit-0, digit-1"),
        (["learn", broken, "--model", file, "--size", 16], "--size: decided when a model is begun"),
        (["learn", own / "part-1", "--model", tmp_path / "new", *NEW, *full], "does not fit"),
        (["predict", tmp_path / "nowhere.png", "--model", file], "no such file"),
        (["predict", broken / "digit-5" / "0000.png", "--model", file], "cannot be read"),
        (["predict", own / "part-1", "--model", tmp_path / "none"], "no such file"),
        (["export", file], "--onnx OUT.onnx"),
        (["inspect", file, "--picture", tmp_path / "ledger"], "name a file that ends in .png"),
    ]
    for arguments, words in cases:
        result = call(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.output, (words, result.output)
        assert "Traceback" not in result.output
    assert file.read_bytes() == before
    assert sorted(path.name for path in own.iterdir()) == ["m.safetensors", "part-1", "part-2"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 something else entirely", b"\x80\x04pickle"])
def test_a_file_of_another_program_is_left_alone(own: Path, tmp_path: Path, contents: bytes) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(contents)
    cases: list[tuple[list[Any], str]] = [
        (["learn", own / "part-1", "--model", other], "new model"),
        (["predict", own / "part-1", "--model", other], "afaf doctor"),
        (["inspect", other], "afaf doctor"),
    ]
    for arguments, words in cases:
        result = call(*arguments)
        assert result.exit_code == 2
        assert words in result.output
    assert other.read_bytes() == contents


def test_a_full_model_says_what_to_do(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "small"
    assert call("learn", own / "part-1", "--model", file, *NEW[:-6], "--max-tasks", 1, "--device", "cpu").exit_code == 0
    before = file.read_bytes()
    result = call("learn", own / "part-2", "--model", file, "--device", "cpu")
    assert result.exit_code == 2
    assert "the model is full" in result.output
    assert "larger max_tasks" in result.output
    assert file.read_bytes() == before


def test_the_old_file_stays_until_the_new_one_is_verified(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader finds at every moment is whole; a new file that is not what was meant gives way to the old one."""
    file, before = own / "m.safetensors", (own / "m.safetensors").read_bytes()
    seen: list[bytes] = []

    def look_and_fail(path: Path, data: bytes) -> None:
        assert path.read_bytes() == data
        seen.append(file.read_bytes())
        raise keeping.FileError("damaged on its way")

    monkeypatch.setattr(keeping, "_verify", look_and_fail)
    result = call("learn", write_folder(own / "part-3", 4), "--model", file, "--device", "cpu")
    assert result.exit_code == 2
    assert seen == [before]
    assert file.read_bytes() == before
    assert sorted(path.name for path in own.iterdir()) == ["m.safetensors", "part-1", "part-2", "part-3"]


def test_a_file_changed_meanwhile_is_not_written_over(own: Path) -> None:
    file = own / "m.safetensors"
    model, before = keeping.open_model(file), keeping.checksum_of(file)
    call("classes", file, "--rename", "digit-0=zero")
    changed = file.read_bytes()
    with pytest.raises(keeping.RunError, match="changed by another program"):
        keeping.replace_model(file, model, before)
    assert file.read_bytes() == changed


def test_of_two_that_change_a_file_at_once_one_is_refused(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, both_read, save, refused = own / "m.safetensors", threading.Barrier(2), Lifelong.to_bytes, []

    def slow_save(model: Lifelong) -> bytes:
        time.sleep(0.3)
        return save(model)

    def change(old: str, new: str) -> None:
        try:
            change_classes(path, [f"{old}={new}"], [])
        except RunError as error:
            refused.append((old, str(error)))

    monkeypatch.setattr(Lifelong, "to_bytes", slow_save)
    monkeypatch.setattr(cli_learn, "check_place", lambda path: both_read.wait())
    threads = [threading.Thread(target=change, args=names) for names in (("digit-0", "zero"), ("digit-1", "one"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [(loser, words)] = refused
    assert "changed by another program meanwhile" in words
    assert set(Lifelong.load(path).life.known) >= {loser, "one" if loser == "digit-0" else "zero"}
    assert [file.name for file in own.iterdir() if "m.safetensors" in file.name] == ["m.safetensors"]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("room", "name"), [(Lifelong, "learn"), (Lifelong, "to_bytes"), (keeping, "_verify")])
def test_ctrl_c_says_how_the_file_is_and_how_to_go_on(own: Path, monkeypatch: pytest.MonkeyPatch, room: Any, name: str) -> None:
    """Wherever it comes: while images are learned, while the file is written, while it is read back."""
    file, before = own / "m.safetensors", (own / "m.safetensors").read_bytes()
    part, learned = write_folder(own / "part-3", 4), Lifelong.load(file)
    monkeypatch.setattr(Lifelong, "learn", lambda *_: learned)  # at once
    monkeypatch.setattr(room, name, interrupt)
    result = call("learn", part, "--model", file, "--device", "cpu")
    assert result.exit_code == 130
    assert f"interrupted: {file} is as it was before. To go on, give the same command again" in result.output
    assert file.read_bytes() == before
    result = call("learn", part, "--model", own / "new", *NEW)
    assert result.exit_code == 130
    assert "interrupted: no model was written. To go on, give the same command again" in result.output
    assert sorted(path.name for path in own.iterdir()) == ["m.safetensors", "part-1", "part-2", "part-3"]


def test_ctrl_c_after_the_file_was_written_says_so(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", interrupt)  # of the temporary file, the very last
    result = call("classes", own / "m.safetensors", "--rename", "digit-0=zero")
    assert result.exit_code == 130
    assert "is whole: nothing is left to do" in result.output
    assert "zero" in Lifelong.load(own / "m.safetensors").life.known


def test_what_was_typed_is_judged_before_what_is_in_the_images(own: Path, tmp_path: Path) -> None:
    """In its order, the folder, the model, the options; so that nobody waits for images to be read to learn of a wrong word."""
    broken = write_folder(tmp_path / "broken", 5)
    for image in broken.rglob("*.png"):
        image.write_bytes(b"no image")
    known = tmp_path / "known"
    shutil.copytree(broken / "digit-5", known / "digit-0")
    wrong = ["--set", "learn.epoch=3"]
    cases: list[tuple[list[Any], str]] = [
        (["learn", tmp_path / "nowhere", "--model", tmp_path / "new", *wrong], "no such folder"),
        (["learn", tmp_path / "nowhere", "--model", own / "part-1"], "no such folder"),
        (["learn", broken, "--model", tmp_path / "new", *wrong], "did you mean 'learn.epochs'"),
        (["learn", broken, "--model", tmp_path / "new", "--network", "alexnot"], "did you mean 'alexnet'"),
        (["learn", broken, "--model", tmp_path / "new", "--device", "abacus"], "not a device"),
        (["learn", known, "--model", own / "m.safetensors"], "already learned: digit-0"),
        (["predict", tmp_path / "nowhere", "--model", tmp_path / "none"], "nowhere: no such file or folder"),
        (["run", f"folder:{tmp_path / 'nowhere'}", "afav", *wrong, "--device", "abacus"], "nowhere: no such folder"),
        (["run", f"folder:{broken}", "afav", *wrong, "--device", "abacus"], "did you mean 'afaf'"),
        (["run", f"folder:{broken}", "afaf", *wrong, "--device", "abacus"], "did you mean 'learn.epochs'"),
        (["costs", f"folder:{broken}", "afaf", *wrong], "did you mean 'learn.epochs'"),
        (["tune", f"folder:{broken}", "lwf", *wrong], "did you mean 'learn.epochs'"),
    ]
    for arguments, words in cases:
        result = call(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.output, (words, result.output)
    assert not (tmp_path / "new").exists()


def test_unreadable_images_are_told_with_the_option_of_the_command(own: Path, tmp_path: Path) -> None:
    broken = write_folder(tmp_path / "broken", 5)
    (broken / "digit-5" / "0000.png").write_text("a text")
    skip = "1 of 24 images cannot be read (--skip-unreadable leaves them out)"
    assert skip in call("learn", broken, "--model", own / "m.safetensors").output
    assert skip in call("predict", broken, "--model", own / "m.safetensors").output
    exported = call("export", own / "m.safetensors", "--torch", tmp_path / "m.pt2", "--images", broken).output
    assert "cannot be read (name others with --images)" in exported
    assert "--set stream.unreadable=skip" in call("run", f"folder:{broken}", "afaf").output


@pytest.mark.parametrize(
    "command", ["learn", "classes", "inspect", "picture", "export", "run", "report", "figures", "streams", "results", "data"]
)
def test_what_cannot_be_written_ends_with_the_same_exit_code_everywhere(own: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file` is no folder, so nothing can be written below it."""
    monkeypatch.chdir(own)
    (own / "file").write_text("")
    model, below, lines = own / "m.safetensors", own / "file" / "below", own / "lines"
    lines.mkdir()
    (lines / "a.jsonl").write_text(next(line for line in MEASURED.read_text().splitlines() if '"acc"' in line) + "\n")
    (lines / "mine.toml").write_text('title = "t"\nfeeds = "f"\n[[grid]]\nstreams = ["split-digits"]\nmethods = ["afaf"]\nseeds = 1\n')
    commands: dict[str, list[Any]] = {
        "learn": ["learn", own / "part-1", "--model", below, *NEW],
        "classes": ["classes", model, "--rename", "digit-0=zero"],
        "inspect": ["inspect", model, "--html"],
        "picture": ["inspect", model, "--picture", below.with_suffix(".png")],
        "export": ["export", model, "--torch", below],
        "run": ["run", "split-digits", "finetune", "--out", below, "--device", "cpu"],
        "report": ["report", lines, "--out", below],
        "figures": ["report", lines, "--figures", below],
        "streams": ["streams", "split-digits", "--out", below],
        "results": ["reproduce", "mine", "--results", below, "--experiments", lines, "--device", "cpu"],
        "data": ["data", "get", "mnist", "--data", below],
    }
    if command == "classes":
        monkeypatch.setattr(keeping.os, "access", lambda path, mode: mode != os.W_OK)
    if command == "inspect":
        (own / "m.html").mkdir()
    before = model.read_bytes()
    result = call(*commands[command])
    assert result.exit_code == 1, result.output
    assert "cannot " in result.output
    assert "Traceback" not in result.output
    assert model.read_bytes() == before


@pytest.mark.parametrize(("seconds", "on_cpu", "announced"), [(60, True, True), (1, True, False), (60, False, False)])
def test_the_time_left_is_estimated_without_the_slow_first_epoch(seconds: float, on_cpu: bool, announced: bool) -> None:
    screen, now = io.StringIO(), [0.0]
    bar = Bar(Console(file=screen, width=400), on_cpu, clock=lambda: now[0])
    bar.began(1, ["a", "b"], 21)
    for epoch in range(2):
        now[0] += seconds if epoch else 5 * seconds
        bar.epoch_ended(EpochReport(1, 0, epoch, 21, 0.5, 50.0))
    assert ("about 19 min" in screen.getvalue()) == (seconds == 60)
    assert screen.getvalue().count("Ctrl-C") == announced


def test_progress_is_lines_where_there_is_no_terminal() -> None:
    screen, now = io.StringIO(), [0.0]
    bar = Bar(Console(file=screen, width=400), clock=lambda: now[0])
    bar.began(3, ["a", "b"], 100)
    for epoch in range(100):
        now[0] += 1.0
        bar.epoch_ended(EpochReport(3, 0, epoch, 100, 0.5, 50.0))
    lines = screen.getvalue().splitlines()
    assert len(lines) == 1 + 100 // cli_learn.EVERY
    assert all("task 3" in line for line in lines)
    assert "50 of 100" in lines[5]
    assert "about 50 s" in lines[5]


def test_an_option_may_be_repeated_and_not_changed(own: Path) -> None:
    """Whatever a model was begun with may be said again with the next task; another value is refused by its name."""
    model = own / "m.safetensors"
    part = write_folder(own / "part-3", 4, 5)
    changed = {"--size": 16, "--epochs": 3, "--max-tasks": 6, "--seed": 4, "--validation": 0.3, "--network": "mlp", "--max-classes": 50}
    for option, value in [*changed.items(), ("--set", "learn.lr=0.07")]:
        result = call("learn", part, "--model", model, "--device", "cpu", option, value)
        assert result.exit_code == 2, option
        assert option in result.output
    before = model.read_bytes()
    result = call("learn", part, "--model", model, *NEW, "--validation", 0.1, "--network", "small-cnn", "--set", "learn.lr=0.1")
    assert result.exit_code == 0, result.output
    assert model.read_bytes() != before


def test_a_network_that_would_be_too_large_is_refused_by_the_size_of_its_images(own: Path) -> None:
    result = call("learn", own / "part-1", "--model", own / "new", "--size", 224)
    assert result.exit_code == 2
    assert "224" in result.output
    assert not (own / "new").exists()


ASCII = "import sys; sys.stdout.reconfigure(encoding='ascii', errors='strict'); sys.stderr.reconfigure(encoding='ascii')"
HOSTILE = ["a\x1b[31mred\x1b[0m", "b\u202etxt.exe", "=cmd|' /C calc'!A0", os.fsdecode(b"bad\xff"), "naïve ✓ 猫", "two\nlines", "$\\frac{"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A folder of classes with such names, learned on an ASCII terminal."""
    folder = tmp_path_factory.mktemp("hostile")
    images, _ = digits(0, per_class=4)
    for name in HOSTILE:
        (folder / "train" / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / "train" / name / f"{number}.png")
    arguments = ["learn", "train", "--model", "m.safetensors", "--size", "8", "--grey", "--epochs", "1", "--device", "cpu"]
    done = forks.run(arguments, folder, first=ASCII)
    assert done.returncode == 0, done.stderr
    assert b"wrote m.safetensors" in done.stdout
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "m.safetensors"],
        ["inspect", "m.safetensors", "--html"],
        ["inspect", "m.safetensors", "--picture", "m.png"],
        ["classes", "m.safetensors"],
        ["predict", "train", "--model", "m.safetensors"],
        ["predict", "train", "--model", "m.safetensors", "--csv"],
        ["predict", "train", "--model", "m.safetensors", "--json"],
    ],
    ids=" ".join,
)
def test_any_name_can_be_printed_and_none_reaches_the_terminal_as_it_is(hostile: Path, arguments: list[str], forks: Forks) -> None:
    done = forks.run(arguments, hostile, first=ASCII)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout + done.stderr
    if "--html" in arguments:
        page = (hostile / "m.html").read_text(encoding="utf-8")
        assert r"bad\xff" in page
        assert "\u202e" not in page
    if "--csv" in arguments:
        cells = [cell for row in csv.reader(io.StringIO(done.stdout.decode())) for cell in row]
        assert not [cell for cell in cells if cell.startswith("=")]
        assert any("=cmd" in cell for cell in cells)


@pytest.mark.parametrize("command", [["predict", "train", "--csv"], ["predict", "train"], ["predict", "train", "--json"]])
def test_a_closed_output_is_told_in_a_line(hostile: Path, command: list[str], forks: Forks) -> None:
    done = forks.run([*command, "--model", "m.safetensors"], hostile, first="import os, sys; os.close(1); sys.stdout = None")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file that is always full")
def test_learning_has_not_failed_where_only_its_report_cannot_be_printed(own: Path, forks: Forks) -> None:
    """A script would repeat it otherwise."""
    done = forks.run(["classes", "m.safetensors", "--rename", "digit-0=zero"], own, Path("/dev/full"))
    assert done.returncode == 0
    assert "zero" in Lifelong.load(own / "m.safetensors").life.known
    assert len(done.stderr.splitlines()) == 1


def test_images_left_out_are_told_without_the_place_in_the_program(own: Path, tmp_path: Path) -> None:
    broken = write_folder(tmp_path / "broken", 5)
    (broken / "digit-5" / "0000.png").write_text("a text")
    result = call("predict", broken, "--model", own / "m.safetensors", "--skip-unreadable")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: 1 of 24 images cannot be read and are left out")
    assert "0000.png: not an image, whatever its name says" in result.stderr
    assert ".py" not in result.stderr


def test_a_link_is_followed_and_stays_one(own: Path) -> None:
    (own / "link").symlink_to(own / "m.safetensors")
    assert call("classes", own / "link", "--rename", "digit-0=zero").exit_code == 0
    assert (own / "link").is_symlink()
    assert "zero" in Lifelong.load(own / "m.safetensors").life.known


def test_every_box_of_the_page_has_a_style(own: Path) -> None:
    (own / "m.html").unlink(missing_ok=True)
    assert call("inspect", own / "m.safetensors", "--html").exit_code == 0
    style, body = (own / "m.html").read_text(encoding="utf-8").split("</style>")
    used = {name for names in re.findall(r'<div class="([^"]*)"', body) for name in names.split()}
    assert used
    assert not {name for name in used if f".{name} " not in style and f".{name}," not in style}
