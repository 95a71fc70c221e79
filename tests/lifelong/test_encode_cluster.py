"""Teaching from sums that other processes computed: the same model as one process teaches, whoever dies on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from afaf.cli.main import app
from afaf.cluster import connect
from afaf.encoders.find import find_encoder
from afaf.lifelong.encode_cluster import learn_on_cluster
from afaf.lifelong.encode_files import FileParts
from afaf.lifelong.encoded import EncodedModel
from afaf.streams.own import find_class_folders

runner = CliRunner()


class Colours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 12, 5, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small encoder in a file."""
    path = tmp_path_factory.mktemp("encoder") / "encoder.pt2"
    dynamic = ({0: torch.export.Dim("n", min=1, max=512)},)
    program = torch.export.export(Colours().eval(), (torch.zeros(2, 3, 16, 16),), dynamic_shapes=dynamic)
    torch.export.save(program, path, extra_files={"preprocessing": json.dumps({"size": 16, "mean": [127] * 3, "std": [128] * 3})})
    return str(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of small images of noise around a colour."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, colour in {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}.items():
        (folder / name).mkdir()
        for i in range(60):
            pixels = np.array(colour) + rng.normal(0, 60, (20, 24, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:03}.png")
    return folder


def taught(model: EncodedModel, files: Any) -> EncodedModel:
    return model.learn(FileParts(model.encoder, files, "error", "", lambda images: None))


def assert_same(one: EncodedModel, other: EncodedModel) -> None:
    assert one.life.labels == other.life.labels
    assert one.life.tasks[-1].accuracy == other.life.tasks[-1].accuracy
    assert (one.life.tasks[-1].images, one.life.tasks[-1].held_out) == (other.life.tasks[-1].images, other.life.tasks[-1].held_out)
    for a, b in ((one.linear.weights, other.linear.weights), (one.linear.bias, other.linear.bias), (one.taught.gram, other.taught.gram)):
        assert float((a - b).abs().max()) <= 1e-6 * max(1.0, float(b.abs().max()))
    assert one.temperature == pytest.approx(other.temperature, rel=1e-6)


def test_sums_of_shards_add_up_to_the_same_model(photos: Path, encoder: str) -> None:
    """Wherever the images are cut, and with labels that come in another order in a shard."""
    model, files = EncodedModel.begin(find_encoder(encoder)), find_class_folders(photos).files
    whole = taught(model, files)
    for cuts in ([17], [1, 100, 101], [60, 120]):
        parts = [files[a:b] for a, b in zip([0, *cuts], [*cuts, len(files)], strict=True)]
        sums = [model.summed(FileParts(model.encoder, part, "error", "", lambda images: None)) for part in parts]
        total = sums[0]
        for more in sums[1:]:
            total = total + more
        assert_same(model.learn_sums(total), whole)
        again = whole.learn_sums(total)  # of classes that it knows
        assert again.life.known == whole.life.known
        assert again.taught.images == 2 * whole.taught.images


@pytest.mark.slow
def test_workers_of_a_cluster_teach_the_same_model(photos: Path, encoder: str, ray_folder: Path) -> None:
    """The small cluster also tells which image cannot be read."""
    ray = pytest.importorskip("ray")
    model, files = EncodedModel.begin(find_encoder(encoder)), find_class_folders(photos).files
    how: Any = {"device": "cpu", "unreadable": "error", "remedy": "", "on_batch": lambda images: None}
    connect("ray", jobs_at_once=2)
    try:
        assert_same(learn_on_cluster(model, encoder, files, on="ray", **how), taught(model, files))
        bad = photos.parent / "bad.png"
        bad.write_text("this is no image")
        with pytest.raises(Exception, match="bad"):
            learn_on_cluster(model, encoder, [*files, (bad, "red")], on="ray", **how)
        with pytest.warns(UserWarning, match="bad"):
            skipped = learn_on_cluster(model, encoder, [*files, (bad, "red")], on="ray", **{**how, "unreadable": "skip"})
        assert_same(skipped, taught(model, files))
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_teaching_without_workers_says_once_what_it_waits_for(photos: Path, encoder: str, busy_cluster: list[str]) -> None:
    model, files = EncodedModel.begin(find_encoder(encoder)), find_class_folders(photos).files
    how: Any = {"device": "cpu", "unreadable": "error", "remedy": "", "on_batch": lambda images: None}
    assert_same(learn_on_cluster(model, encoder, files, on="ray", **how), taught(model, files))
    assert len(busy_cluster) == 1
    assert "CPU" in busy_cluster[0]


@pytest.mark.parametrize("on", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_manifest_and_a_url_name_the_same_images(photos: Path, encoder: str, tmp_path: Path, on: str) -> None:
    files = find_class_folders(photos).files
    manifest = tmp_path / "images.csv"
    manifest.write_text("path,label\n" + "".join(f"{os.path.relpath(path, tmp_path)},{label}\n" for path, label in files))
    models = []
    for name, source in {"folder": photos, "manifest": manifest, "url": photos.as_uri()}.items():
        command = ["learn", str(source), "--model", str(tmp_path / f"{name}.model"), "--encoder", encoder, "--on", on]
        told = runner.invoke(app, [*command, "--device", "cpu"])
        assert told.exit_code == 0, told.output
        models.append(EncodedModel.load(tmp_path / f"{name}.model"))
    for model in models[1:]:
        assert_same(model, models[0])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nothing.png,red\n", "nothing.png"),
        ("path,label\n", "images.csv"),
        ("a.png\n", "line 1"),
        ("a.png,\n", "line 1"),
        ("", "images.csv"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_text(text)
    told = runner.invoke(app, ["learn", str(tmp_path / "images.csv"), "--model", str(tmp_path / "m"), "--encoder", "patches"])
    assert told.exit_code == 2, told.output
    assert named in " ".join(told.stderr.split())
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("url", ["nosuch://bucket/photos", "file:///no/such/folder/at/all"])
def test_a_url_without_images_is_refused(url: str, tmp_path: Path) -> None:
    told = runner.invoke(app, ["learn", url, "--model", str(tmp_path / "m"), "--encoder", "patches"])
    assert told.exit_code == 2, told.output
    assert url.partition(":")[0] in told.stderr


@pytest.mark.realdata
@pytest.mark.skipif("AFAF_PHOTOS" not in os.environ, reason="AFAF_PHOTOS names the Grocery Store Dataset")
def test_two_nodes_teach_photographs_and_one_is_killed(two_nodes: Any) -> None:
    model = EncodedModel.begin(find_encoder("efficientnet-lite0"))
    files = find_class_folders(Path(os.environ["AFAF_PHOTOS"])).files[::6]
    second = next(iter(two_nodes.worker_nodes))

    def kill(images: int) -> None:
        if second in two_nodes.worker_nodes:
            two_nodes.remove_node(second, allow_graceful=False)

    how: Any = {"device": "cpu", "unreadable": "error", "remedy": "", "on_batch": kill}
    there = learn_on_cluster(model, "efficientnet-lite0", files, on=f"ray:{two_nodes.address}", **how)
    assert second not in two_nodes.worker_nodes
    assert_same(there, taught(model, files))
