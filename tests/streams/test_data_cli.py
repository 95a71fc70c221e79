"""`afaf data` says what is there, in words and in JSON, and ends with an error where something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from afaf.cli import datasets as module
from afaf.cli.consoles import OUT
from afaf.cli.datasets import show_stream
from afaf.cli.main import app
from afaf.errors import ConfigError
from afaf.streams import download
from afaf.streams.sources import SOURCES, Remote
from streams import makers


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "400"})


def failed(*arguments: object) -> str:
    """The message of a command that must end with an error for people."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is so long that a line breaks; the console may have been made for another width by an earlier test."""
    monkeypatch.setattr(OUT, "_width", 400)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST whole, CIFAR-10 without its last five classes, and nothing else; 'published' is what was made here."""
    data = tmp_path / "data"
    makers.idx(data / "mnist")
    makers.cifar10(data)
    published = {name: makers.as_published(SOURCES[name], data) for name in ("mnist", "cifar10")}
    monkeypatch.setattr(module, "SOURCES", {**SOURCES, **published})
    monkeypatch.setattr(module, "find_source", lambda name: module.SOURCES[name])
    for path in (data / "cifar-10-batches-bin").iterdir():
        records = [path.read_bytes()[i : i + 3073] for i in range(0, path.stat().st_size, 3073)]
        path.write_bytes(b"".join(record for record in records if record[0] < 5))
    return data


def test_list_in_words_and_json(folder: Path) -> None:
    words = run("list", "--data", folder)
    assert words.exit_code == 0
    rows = {line.split("│")[1].strip(): line for line in words.stdout.splitlines() if line.startswith("│")}
    assert list(rows) == ["cifar10", "cifar100", "mnist", "fashion-mnist", "notmnist"]
    assert "partial" in rows["cifar10"]
    assert "5 of 10 classes" in rows["cifar10"]
    assert "verified" in rows["mnist"]
    assert "missing" in rows["notmnist"]
    found = json.loads(run("list", "--data", folder, "--json").stdout)
    assert found["folder"] == str(folder)
    mnist = next(each for each in found["datasets"] if each["name"] == "mnist")
    assert (mnist["state"], mnist["train"], mnist["test"]) == ("verified", 40, 20)
    assert mnist["counts"]["train"]["7"] == 4


def test_check_counts_every_class(folder: Path) -> None:
    words = run("check", "--data", folder)
    assert words.exit_code == 0, words.exception
    assert "CIFAR-10: 50 + 10" in words.stdout
    assert "automobile" in words.stdout
    assert "truck" not in words.stdout
    assert json.loads(run("check", "mnist", "--data", folder, "--json").stdout)["datasets"][0]["counts"]["test"]["9"] == 2


def test_check_ends_with_an_error_where_something_is_wrong(folder: Path) -> None:
    assert "afaf data get notmnist" in failed("check", "notmnist", "--data", folder)
    path = folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-3])
    assert str(path) in failed("check", "--data", folder)
    assert "damaged" in run("list", "--data", folder).stdout
    result = run("check", "--data", folder, "--json")
    assert result.exit_code == 2
    assert "damaged" in {each["state"] for each in json.loads(result.stdout)["datasets"]}


def test_names_are_datasets_streams_or_all() -> None:
    assert [each.name for each in module._named(["mix", "mnist"])] == ["cifar10", "mnist", "notmnist", "fashion-mnist"]
    assert [each.name for each in module._named(["split-digits"])] == []
    assert len(module._named(["all"])) == 5
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        module._named(["cifar01"])


def test_get_skips_what_is_verified_and_reports_what_cannot_be_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    nowhere = Remote("nothing.gz", ("http://127.0.0.1:9/nothing.gz",), 10)
    monkeypatch.setattr(module, "SOURCES", {name: replace(each, remotes=(nowhere,)) for name, each in module.SOURCES.items()})
    there = run("get", "mnist", "--data", folder)
    assert (there.exit_code, "already in" in there.stdout) == (0, True)
    for arguments in (("get", "notmnist"), ("get", "mnist", "--force"), ("get", "cifar10")):
        assert "could not download" in failed(*arguments, "--data", folder)


def test_show_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = show_stream("split-digits", None, tmp_path / "digits.png")
    shown = capsys.readouterr().out
    assert "five tasks of two" in shown
    assert "1,438" in shown
    assert Image.open(path).size[1] > 500


def test_show_stream_in_another_class_order(tmp_path: Path) -> None:
    def shown(*settings: str) -> Result:
        sets = [word for setting in settings for word in ("--set", setting)]
        return CliRunner().invoke(app, ["streams", "split-digits", *sets, "--out", str(tmp_path / "digits.png"), "--force"])

    usual, other = shown(), shown("stream.order=6,9,0,1,2,3,4,5,7,8")
    assert (usual.exit_code, other.exit_code) == (0, 0)
    names = [[line.split("│")[3].strip() for line in result.stdout.splitlines() if line.count("│") > 4] for result in (usual, other)]
    assert [name for name in names[0] if name] == list("0123456789")
    assert [name for name in names[1] if name] == list("6901234578")
    for wrong, words in (("stream.order=6,9", "stream.order"), ("learn.epochs=2", "learn.epochs"), ("stream.ordre=1", "stream.order")):
        result = shown(wrong)
        assert (result.exit_code, words in result.stderr) == (2, True)


def test_show_stream_of_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("[red]", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "own" / name / f"{i}.png").write_bytes(makers.png(makers.pixels(8, 8, seed=i)))
    show_stream(f"folder:{tmp_path / 'own'}", None, tmp_path / "own.png", size=8)
    assert "[red]" in capsys.readouterr().out
