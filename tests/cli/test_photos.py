"""The commands on a model of an encoder and a head, as a user gives them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from afaf import AFAFClassifier
from afaf.cli.main import app
from afaf.cli.photos import Encoding, encoder_for
from afaf.encoders import efficientnet_lite
from afaf.lifelong.export import open_onnx, open_torch
from afaf.methods import method_names

COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


class Colours(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 12, 5, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


def write_encoder(path: Path, seed: int = 0) -> Path:
    batch = torch.export.Dim("n", min=1, max=512)
    program = torch.export.export(Colours(seed).eval(), (torch.zeros(2, 3, 16, 16),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={"preprocessing": json.dumps({"size": 16, "mean": [127] * 3, "std": [128] * 3})})
    return path


def write_photos(folder: Path, names: tuple[str, ...], each: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = np.array(COLOURS[name]) + rng.normal(0, 40, (20, 24, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:03}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder file, photographs in three folders, and models of them."""
    place = tmp_path_factory.mktemp("photos")
    encoder = write_encoder(place / "encoder.pt2")
    write_photos(place / "first", ("red", "green"), 70)
    write_photos(place / "second", ("blue",), 70, 1)
    write_photos(place / "test", ("red", "green", "blue"), 10, 2)
    write_photos(place / "few" / "first", ("red", "green"), 10)
    write_photos(place / "few" / "second", ("blue",), 10, 1)
    for folders, name in ((("first", "second"), "both"), (("first",), "a"), (("second",), "b")):
        for folder in folders:
            result = call("learn", place / folder, "--model", place / f"{name}.safetensors", "--encoder", encoder)
            assert result.exit_code == 0, result.output
    return place


def accuracy(model: Path, folder: Path) -> float:
    return float(json.loads(call("evaluate", model, folder, "--json").stdout.splitlines()[-1])["accuracy"])


def test_photos_are_learned_call_by_call_and_judged(place: Path) -> None:
    assert accuracy(place / "both.safetensors", place / "test") >= 95
    result = call("evaluate", place / "both.safetensors", place / "test", "--html")
    assert result.exit_code == 0
    assert "blue" in (place / "both.evaluation.html").read_text()
    facts = json.loads(call("inspect", place / "both.safetensors", "--json").stdout)
    assert [row["label"] for row in facts["classes"]] == ["green", "red", "blue"]
    assert [row["images"] for row in facts["classes"]] == [70, 70, 70]
    assert call("doctor", place / "both.safetensors").exit_code == 0


def test_predict_says_class_and_whether_it_is_none_of_these(place: Path) -> None:
    rows = json.loads(call("predict", place / "test" / "red", "--model", place / "both.safetensors", "--json").stdout)
    assert {row["label"] for row in rows} == {"red"}
    assert np.mean([row["none_of_these"] for row in rows]) < 0.5


def test_people_read_none_of_these_wherever_a_model_says_so(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes((place / "a.safetensors").read_bytes())
    red, blue = place / "test" / "red" / "000.png", place / "second" / "blue" / "000.png"
    asked = [call("predict", blue, "--model", model), call("predict", red, "--model", model, "--unknown-below", 1)]
    judged = [call("evaluate", model, place / "first", "--html")]
    for text in [result.stdout for result in asked + judged] + [model.with_suffix(".evaluation.html").read_text()]:
        assert "none of these" in text
        assert "unknown" not in text
    assert "none of these" not in call("predict", red, "--model", model).stdout


def test_more_images_of_known_classes_are_welcome_and_evaluated(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes((place / "a.safetensors").read_bytes())
    more = write_photos(tmp_path / "more", ("red", "blue"), 15, 5)
    result = call("learn", more, "--model", model, "--evaluate", place / "test", "--json")
    assert result.exit_code == 0, result.output
    about = json.loads(result.stdout.splitlines()[-1])
    assert about["new_classes"] == ["blue"]
    assert (about["before"]["images"], about["after"]["images"]) == (20, 30)


def test_images_of_classes_that_a_model_does_not_know_are_counted_apart(place: Path, tmp_path: Path) -> None:
    """The numbers of the others are as if those images were not in the folder."""
    model = tmp_path / "m.safetensors"
    model.write_bytes((place / "a.safetensors").read_bytes())
    alone = write_photos(tmp_path / "alone", ("red", "green"), 10, 2)
    mixed = write_photos(tmp_path / "mixed", ("red", "green"), 10, 2)
    strange = write_photos(tmp_path / "strange", ("blue",), 26, 3) / "blue"
    names = [f"strange-{i:02}" for i in range(13)]
    for folder in (alone, mixed):  # of a known class, it is said, but like none
        (folder / "red" / "blue.png").write_bytes((strange / "000.png").read_bytes())
    for image, name in zip(sorted(strange.iterdir()), names * 2, strict=True):
        (mixed / name).mkdir(exist_ok=True)
        image.rename(mixed / name / image.name)
    result = call("evaluate", model, mixed, "--html", "--json")
    found, expected = json.loads(result.stdout), json.loads(call("evaluate", model, alone, "--json").stdout)
    apart, nothing = found.pop("unknown_classes"), expected.pop("unknown_classes")
    rows = json.loads(call("predict", *(mixed / name for name in names), "--model", model, "--json").stdout)
    assert apart == {"images": 26, "classes": names, "none_of_these": sum(row["none_of_these"] for row in rows)}
    assert apart["none_of_these"] > 0
    assert 0 < expected["unknown"] < 50
    assert nothing == {"images": 0, "classes": [], "none_of_these": 0}
    assert json.loads(json.dumps(found).replace(str(mixed), str(alone))) == expected
    for text in (call("evaluate", model, mixed).stdout, model.with_suffix(".evaluation.html").read_text()):
        for some in ("26", str(apart["none_of_these"]), names[0], "3 more"):
            assert some in text
        assert names[-1] not in text
    for text in (call("evaluate", model, alone, "--html", "--force").stdout, model.with_suffix(".evaluation.html").read_text()):
        assert "does not know" not in text


def test_a_call_is_judged_on_the_known_classes_and_refused_before_it_learns_if_there_is_none(place: Path, tmp_path: Path) -> None:
    model, red = tmp_path / "m.safetensors", write_photos(tmp_path / "red", ("red",), 10)
    learn = ["learn", red, "--model", model, "--encoder", place / "encoder.pt2", "--json", "--cache", tmp_path / "cache", "--evaluate"]
    assert call(*learn, place / "second").exit_code == 2
    assert not model.exists()
    assert not list((tmp_path / "cache").rglob("*.npy"))  # no image was looked at
    about = json.loads(call(*learn, place / "test").stdout.splitlines()[-1])
    assert (about["after"]["images"], about["after"]["unknown_classes"]["classes"]) == (10, ["blue", "green"])
    assert call("evaluate", model, place / "second").exit_code == 2


def test_a_network_is_judged_before_and_after_and_lost_classes_are_told(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    how = ["--evaluate", place / "test", "--json", "--device", "cpu"]
    begin = ["--method", "finetune", "--epochs", 30, "--size", 8, "--network", "mlp"]
    assert call("learn", place / "first", "--model", model, "--evaluate", tmp_path / "nowhere", *begin).exit_code == 2
    assert not model.exists()
    first = write_photos(tmp_path / "test", ("red", "green"), 10, 2)
    result = call("learn", place / "first", "--model", model, *begin, "--evaluate", first, *how[2:])
    about = json.loads(result.stdout.splitlines()[-1])
    assert (about["before"], about["after"]["accuracy"]) == (None, 100)
    result = call("learn", place / "second", "--model", model, *how)
    about = json.loads(result.stdout.splitlines()[-1])
    assert (about["before"]["images"], about["after"]["images"]) == (20, 30)
    assert about["after"]["accuracy"] < 50  # fine-tuning forgets
    assert "red" in result.stderr


def test_an_encoder_that_was_moved_is_named_and_features_are_kept(place: Path, tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "here.pt2")
    model, test, cache = tmp_path / "m.safetensors", place / "test", tmp_path / "cache"
    assert call("learn", place / "first", "--model", model, "--encoder", encoder, "--cache", cache).exit_code == 0
    moved = encoder.rename(tmp_path / "there.pt2")
    for command in (["evaluate", model, place / "first", "--json"], ["predict", test, "--model", model, "--json"]):
        assert call(*command).exit_code == 2
        answers = [call(*command, "--encoder", moved, *more).stdout for more in ([], ["--cache", cache])]
        assert answers[0] == answers[1]
        assert call(*command, "--encoder", write_encoder(tmp_path / "strange.pt2", 1)).exit_code == 2
    kept = sorted(cache.rglob("*.npy"))
    assert len(kept) == 140 + 30
    kept[0].write_bytes(b"no features")
    before = model.read_bytes()
    assert call("forget", test, "--model", model, "--encoder", moved, "--cache", cache).exit_code == 2  # of a class that it does not know
    assert model.read_bytes() == before
    assert call("learn", place / "second", "--model", model, "--encoder", moved, "--cache", cache).exit_code == 0
    assert (
        accuracy(place / "both.safetensors", test)
        == json.loads(call("evaluate", model, test, "--encoder", moved, "--cache", cache, "--json").stdout)["accuracy"]
    )


def test_with_sums_of_each_class_a_class_goes_without_its_images(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    for folder in ("first", "second"):
        more = ["--encoder", place / "encoder.pt2", "--class-sums"] if folder == "first" else []
        assert call("learn", place / folder, "--model", model, *more).exit_code == 0
    assert "never" in call("classes", model, "--remove", "blue").stdout
    answers = [json.loads(call("predict", place / "test", "--model", path, "--json").stdout) for path in (model, place / "a.safetensors")]
    assert answers[0] == answers[1]
    assert call("doctor", model).exit_code == 0


def test_a_network_is_taught_and_asked_on_features(place: Path, tmp_path: Path) -> None:
    encoder, model, test = place / "encoder.pt2", tmp_path / "m.safetensors", place / "test"
    begin = ["--encoder", encoder, "--method", "afaf", "--epochs", 20, "--max-tasks", 2, "--device", "cpu"]
    assert call("learn", place / "first", "--model", model, *begin, "--grey").exit_code == 2
    result = call("learn", place / "first", "--model", model, *begin)
    assert result.exit_code == 0, result.output
    assert call("learn", place / "second", "--model", model, "--cache", tmp_path / "cache", "--evaluate", test).exit_code == 0
    assert accuracy(model, test) > 50
    moved = tmp_path / "moved.pt2"
    moved.write_bytes(encoder.read_bytes())
    assert call("predict", test, "--model", model, "--encoder", moved, "--json").exit_code == 0
    for wrong in (
        ["evaluate", model, test, "--encoder", write_encoder(tmp_path / "strange.pt2", 1)],
        ["export", model, "--torch", tmp_path / "out.pt2"],
        ["learn", place / "first", "--model", model],
        ["forget", place / "first", "--model", model],
    ):
        assert call(*wrong).exit_code == 2
    refused = call("export", model, "--torch", tmp_path / "out.pt2", "--images", test)
    assert (refused.exit_code, "features" in refused.output) == (2, True)
    assert json.loads(call("inspect", model, "--json").stdout)["encoder"]["name"] == str(encoder)
    assert str(encoder) in call("inspect", model).stdout.replace("\n", "")


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_an_export_holds_the_encoder(place: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    result = call("export", place / "both.safetensors", f"--{kind}", out, "--images", place / "test")
    assert result.exit_code == 0, result.output
    answer = open_onnx(out) if kind == "onnx" else open_torch(out)
    files = sorted((place / "test").rglob("*.png"))
    pixels = np.stack([np.asarray(ImageOps.fit(Image.open(file), (16, 16), Image.Resampling.BICUBIC)) for file in files])
    rows = json.loads(call("predict", *files, "--model", place / "both.safetensors", "--json").stdout)
    assert answer(pixels)[1].argmax(1).tolist() == [["green", "red", "blue"].index(row["label"]) for row in rows]


def test_the_page_of_a_model_names_its_classes(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes((place / "both.safetensors").read_bytes())
    assert call("inspect", model, "--html").exit_code == 0
    assert "blue" in model.with_suffix(".html").read_text()


def test_models_merge_and_images_are_forgotten(place: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.safetensors"
    assert call("merge", place / "a.safetensors", place / "b.safetensors", "--model", merged).exit_code == 0
    assert accuracy(merged, place / "test") == accuracy(place / "both.safetensors", place / "test")
    assert call("forget", place / "second", "--model", merged).exit_code == 0
    assert call("classes", merged).stdout.split() == call("classes", place / "a.safetensors").stdout.split()
    assert call("classes", merged, "--rename", "red=crimson", "--remove", "green").exit_code == 0
    assert call("classes", merged).stdout.split()[0] == "crimson"


def test_errors_are_for_people_and_leave_the_model_alone(place: Path, tmp_path: Path) -> None:
    model, other = place / "both.safetensors", tmp_path / "other.safetensors"
    before = model.read_bytes()
    strange = write_encoder(tmp_path / "strange.pt2", seed=1)
    assert call("learn", place / "first", "--model", other, "--encoder", strange).exit_code == 0
    broken = tmp_path / "broken" / "red"
    broken.mkdir(parents=True)
    (broken / "x.png").write_bytes(b"no image")
    grey = tmp_path / "unknown" / "grey"
    write_photos(tmp_path / "unknown", ("red",), 2)
    (tmp_path / "unknown" / "red").rename(grey)
    cases = [
        (["merge", model, other, "--model", tmp_path / "m"], "different encoders"),
        (["merge", model, place / "a.safetensors", "--model", other], "already"),
        (["learn", place / "first", "--model", model, "--encoder", strange], "other weights"),
        (["learn", place / "first", "--model", model, "--method", "ridge"], "--method"),
        (["learn", place / "first", "--model", model, "--epochs", 3], "--epochs"),
        (["learn", place / "first", "--model", tmp_path / "new", "--encoder", "resnet"], "resnet"),
        (["learn", place / "first", "--model", tmp_path / "new", "--encoder", "none", "--method", "lda"], "method lda"),
        (["learn", place / "first", "--model", tmp_path / "new", "--method", "lad"], "lad"),
        (["learn", place / "first", "--model", tmp_path / "new", "--encoder", "patches", "--seed", 1], "--seed"),
        (["learn", broken.parent, "--model", model], "x.png"),
        (["evaluate", model, grey.parent], "grey"),
        (["forget", grey.parent, "--model", model], "grey"),
        (["forget", place / "first", "--model", tmp_path / "nowhere"], "nowhere"),
        (["classes", model, "--remove", "grey"], "grey"),
        (["export", model, "--torch", tmp_path / "x.pt2", "--encoder", strange], "other weights"),
        (["inspect", model, "--picture", tmp_path / "x.png"], "--picture"),
    ]
    for arguments, words in cases:
        result = call(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.output
        assert "Traceback" not in result.output
    assert model.read_bytes() == before
    assert not (tmp_path / "new").exists()


def test_without_the_extra_patches_need_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "installed", lambda: False)
    model = tmp_path / "new"
    result = call("learn", write_photos(tmp_path / "first", tuple(COLOURS), 5), "--model", model)
    assert (result.exit_code, "afaf[photos]" in result.output) == (0, True)
    facts = json.loads(call("inspect", model, "--json").stdout)
    assert (facts["encoder"]["name"], facts["head"]["name"]) == ("patches", "ridge")
    assert accuracy(model, write_photos(tmp_path / "test", tuple(COLOURS), 3, 2)) >= 95


@pytest.mark.parametrize("method", [name for name in method_names() if name != "joint"])
def test_every_method_learns_call_by_call(place: Path, tmp_path: Path, method: str) -> None:
    model = tmp_path / "m.safetensors"
    begin = ["--method", method, "--encoder", "none", "--epochs", 1, "--size", 8, "--network", "mlp", "--max-tasks", 2]
    for folder, more in (("first", begin), ("second", [])):
        result = call("learn", place / "few" / folder, "--model", model, "--device", "cpu", *more)
        assert result.exit_code == 0, result.output
    assert json.loads(call("inspect", model, "--json").stdout)["method"] == method
    assert accuracy(model, place / "test") > 20
    assert call("learn", write_photos(tmp_path / "more", ("red",), 2), "--model", model).exit_code == 2
    assert call("doctor", model).exit_code == 0


def test_a_method_that_needs_all_classes_at_once_is_refused(place: Path, tmp_path: Path) -> None:
    result = call("learn", place / "first", "--model", tmp_path / "m", "--method", "joint", "--size", 8)
    assert (result.exit_code, "joint" in result.output) == (2, True)


def test_a_file_chooses_the_encoder_and_its_head(place: Path, tmp_path: Path) -> None:
    config, model = tmp_path / "learn.toml", tmp_path / "model.safetensors"
    config.write_text(f'[encoder]\nname = "{place / "encoder.pt2"}"\nhead = "lda"\noptions = {{ shrinkage = 0.25 }}\nbalance = false\n')
    for folder in ("first", "second"):
        assert call("learn", place / folder, "--model", model, "--config", config).exit_code == 0
    head = json.loads(call("inspect", model, "--json").stdout)["head"]
    assert head == {"name": "lda", "options": {"shrinkage": 0.25}, "balance": False, "class_sums": False}
    before = model.read_bytes()
    config.write_text("[encoder]\noptions = { shrinkage = 0.5 }\n")
    assert call("learn", place / "second", "--model", model, "--config", config).exit_code == 2
    config.write_text('[encoder]\nname = "patches"\nhead = "lda"\n[learn]\nlr = 0.1\n')
    for late in (model, tmp_path / "new.safetensors"):
        assert call("learn", place / "second", "--model", late, "--config", config).exit_code == 2
    assert model.read_bytes() == before
    assert not (tmp_path / "new.safetensors").exists()


def test_classes_that_are_numbers_are_taught_removed_and_forgotten_by_their_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in (0, 1, 2):
        (tmp_path / "photos" / str(label)).mkdir(parents=True)
        for i in range(6):
            pixels = (rng.normal(60 + 60 * label, 20, (48, 48, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / str(label) / f"{i}.png")
    x, y = rng.integers(0, 256, (6, 48, 48, 3), dtype=np.uint8), np.arange(6) % 2
    model = tmp_path / "model.safetensors"
    AFAFClassifier(encoder=str(write_encoder(tmp_path / "encoder.pt2"))).fit(x, y).save(model)
    assert call("learn", tmp_path / "photos", "--model", model).exit_code == 0
    assert call("classes", model, "--remove", "1").exit_code == 0
    (tmp_path / "photos" / "0").rename(tmp_path / "zero")
    result = call("forget", tmp_path / "photos", "--model", model)
    assert result.exit_code == 0, result.output
    left = AFAFClassifier.load(model)._lifelong
    assert left.life.every_label == [0, 1]
    assert (left.taught.counts + left.held.counts).tolist() == [9.0, 3.0]


@pytest.mark.parametrize("seed", [0, 1])
def test_an_option_of_a_network_asks_for_one_whatever_its_value(seed: int, tmp_path: Path) -> None:
    assert encoder_for(tmp_path / "new.afaf", Encoding(), {"seed": seed, "epochs": None, "grey": False}) == (None, True)
