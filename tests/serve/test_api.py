"""A model is taught and asked over HTTP."""

from __future__ import annotations

import io
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from afaf.cli.main import app
from afaf.encoders.find import find_encoder
from afaf.encoders.patches import PREPROCESSING
from afaf.lifelong.base import encoded_inputs
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import load_any
from afaf.lifelong.settings import LifelongSettings
from afaf.serve.jobs import Waiting
from afaf.serve.limits import RequestLimits
from serve_world import add, files, names, photo, running, teach, wait


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows red and green."""
    path = tmp_path_factory.mktemp("taught") / "model.safetensors"
    with running(path) as client:
        teach(client, "red", "green")
    return path


@pytest.fixture
def path(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught.parent, tmp_path / "copy")) / taught.name


def labels(client: Any, *colours: str, seed: int = 100) -> list[str]:
    answer = client.post("/predict", files=files([photo(colour, seed) for colour in colours]))
    assert answer.status_code == 200, answer.text
    return [row["label"] for row in answer.json()["answers"]]


def test_from_an_empty_model_to_three_classes_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.safetensors"
    path.parent.mkdir()
    with running(path) as client:
        assert names(client) == []
        assert client.post("/predict", files=files([photo("red", 0)])).status_code == 409
        assert client.get("/model").status_code == 409
        job = teach(client, "red", "green")
        assert job["learned"]["images"] == 12
        assert labels(client, "red", "green") == ["red", "green"]
        teach(client, "blue")
        assert labels(client, "red", "green", "blue") == ["red", "green", "blue"]
        calls = client.get("/classes").json()["calls"]
        assert [call["classes"] for call in calls] == [["green", "red"], ["blue"]]
        three = client.get("/model").content
        assert three == path.read_bytes()
        assert client.post("/undo").status_code == 200
        assert names(client) == ["green", "red"]
        assert client.post("/undo").status_code == 422
        assert client.patch("/classes/red", json={"name": "rouge"}).json() == {"name": "rouge"}
        assert client.delete("/classes/green").status_code == 204
        assert labels(client, "red", "green") == ["rouge", "rouge"]
        assert client.delete("/classes/rouge").status_code == 422  # the last one
        client.post("/undo")
        assert sorted(names(client)) == ["green", "rouge"]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_first_call_can_be_undone_after_a_restart(path: Path) -> None:
    with running(path) as client:
        assert names(client) == ["green", "red"]
        assert client.post("/undo").json()["classes"] == []
        assert client.post("/predict", files=files([photo("red", 0)])).status_code == 409
    assert list(path.parent.iterdir()) == []


def test_the_model_is_the_one_that_afaf_learn_makes(tmp_path: Path) -> None:
    for colour in ("green", "red"):
        (tmp_path / "photos" / colour).mkdir(parents=True)
        for i in range(6):
            (tmp_path / "photos" / colour / f"{i}.png").write_bytes(photo(colour, i))
    learned = tmp_path / "learned.safetensors"
    result = CliRunner().invoke(app, ["learn", str(tmp_path / "photos"), "--model", str(learned)])
    assert result.exit_code == 0, result.output
    with running(tmp_path / "taught.safetensors") as client:
        teach(client, "red", "green")
    ours, theirs = load_any(tmp_path / "taught.safetensors"), load_any(learned)
    assert isinstance(ours, EncodedModel)
    assert isinstance(theirs, EncodedModel)
    assert ours.life.labels == theirs.life.labels
    torch.testing.assert_close(ours.linear.weights, theirs.linear.weights, rtol=1e-6, atol=1e-9)
    assert torch.equal(ours.held.counts, theirs.held.counts)


def test_progress_is_told_as_it_goes(path: Path) -> None:
    with running(path) as client:
        add(client, "blue", [photo("blue", i) for i in range(20)])
        job = client.post("/learn").json()
        with client.stream("GET", f"/jobs/{job['id']}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            states = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert states[-1]["state"] == "done"
    done = [state["done"] for state in states]
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert states[-1]["learned"]["accuracy"] is not None


def test_answers_go_on_while_it_learns_and_change_at_once(path: Path) -> None:
    seen: list[list[str]] = []
    with running(path) as client:
        add(client, "blue", [photo("blue", i) for i in range(40)])
        begun = client.post("/learn")
        end = threading.Event()

        def keep_asking() -> None:
            while not end.is_set():
                seen.append(labels(client, "red", "blue"))
                end.wait(0.05)

        asking = threading.Thread(target=keep_asking)
        asking.start()
        assert client.post("/undo").json()["error"]["type"] == "learning"
        assert client.delete("/classes/red").status_code == 409
        assert client.post("/learn").status_code == 409
        wait(client, begun)
        end.set()
        asking.join()
        assert labels(client, "red", "blue") == ["red", "blue"]
    before = [row for row in seen if row[1] != "blue"]
    assert before
    assert seen[: len(before)] == before  # never back to the old model


def test_a_call_that_is_cancelled_leaves_the_model_as_it_was(path: Path) -> None:
    before = path.read_bytes()
    with running(path) as client:
        add(client, "blue", [photo("blue", i) for i in range(60)])
        begun = client.post("/learn")
        assert client.delete("/learn").status_code == 204
        assert wait(client, begun)["state"] == "cancelled"
        assert path.read_bytes() == before
        assert labels(client, "red") == ["red"]
        teach(client, "blue")


def test_a_file_changed_by_another_program_is_not_written_over(path: Path) -> None:
    with running(path) as client:
        result = CliRunner().invoke(app, ["classes", str(path), "--rename", "red=rouge"])
        assert result.exit_code == 0, result.output
        assert client.delete("/classes/green").status_code == 409
        assert names(client) == ["green", "rouge"]  # and is served from then on
        assert client.delete("/classes/green").status_code == 204


def test_a_call_that_finds_the_file_changed_by_another_program_has_failed(path: Path) -> None:
    with running(path) as client:
        result = CliRunner().invoke(app, ["classes", str(path), "--rename", "red=rouge"])
        assert result.exit_code == 0, result.output
        add(client, "blue", [photo("blue", i) for i in range(6)])
        job = wait(client, client.post("/learn"))
        assert (job["state"], job["learned"]) == ("failed", None)
        assert names(client) == ["green", "rouge"]


def test_images_wait_by_class_and_can_be_discarded(path: Path) -> None:
    with running(path, limits={"waiting_bytes": 4 * 224 * 224 * 3}) as client:
        assert add(client, "a%2Fb", [photo("red", 0)]).json() == {"name": "a/b", "waiting": 1}
        assert add(client, "red", [photo("red", 0), photo("red", 1)]).json() == {"name": "red", "waiting": 2}
        assert client.get("/classes").json()["waiting"] == {"a/b": 1, "red": 2}
        assert client.delete("/classes/a%2Fb/images").status_code == 204
        assert add(client, "red", [photo("red", 2)] * 3).json()["error"]["type"] == "too_many"
        assert client.get("/classes").json()["waiting"] == {"red": 2}
        client.delete("/classes/red/images")
        assert client.post("/learn").json()["error"]["type"] == "nothing_waits"


def test_images_of_an_abandoned_page_are_dropped() -> None:
    waiting = Waiting(RequestLimits(waiting_seconds=60))
    waiting.add("red", [np.zeros((8, 8, 3), dtype=np.uint8)])
    assert waiting.counts() == {"red": 1}
    waiting.touched -= 61
    assert waiting.counts() == {}
    assert waiting.bytes == 0


def test_unknown_and_confusion(path: Path) -> None:
    with running(path) as client:
        teach(client, "red", "green", "blue", count=60, seed=1000)
        about = client.get("/classes").json()
        assert about["unknown"]
        assert about["confused"] == []  # colours are easily told apart
        noise = client.post("/predict?top=2", files=files([photo("red", 1, side=3), photo("red", 5000)])).json()["answers"]
        assert [row["unknown"] for row in noise] == [True, False]
        assert noise[0]["nearest"][0]["distance"] > noise[0]["unknown_above"]
        assert len(noise[1]["top"]) == 2
        certain = client.post("/predict?unknown_below=1", content=photo("red", 5000), headers={"content-type": "image/png"}).json()
        assert certain["answers"][0]["label"] in ("red", "unknown")


def test_a_network_that_was_trained_from_scratch(network: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(network, tmp_path / "network.safetensors"))
    with running(path) as client:
        assert names(client) == ["cat", "dog"]
        assert add(client, "cat", [photo("red", 0)]).json()["error"]["type"] == "data"  # its classes are fixed
        answer = client.post("/predict", files=files([photo("red", i) for i in range(40)])).json()["answers"]
        assert {row["label"] for row in answer} <= {"cat", "dog"}
        assert {row["unknown"] for row in answer} == {None}
        teach(client, "red", "green", count=8)
        assert len(names(client)) == 4
        assert client.get("/model.onnx").content[:1] == b"\x08"
        client.post("/undo")
        assert names(client) == ["cat", "dog"]


def test_a_network_on_features_answers_and_learns_as_without_the_server(tmp_path: Path) -> None:
    """Images are prepared once: preparing them twice would crop them twice."""
    encoder = find_encoder("patches", preprocessing=replace(PREPROCESSING, crop=0.6))
    photos = {colour: [photo(colour, i) for i in range(6)] for colour in ("red", "green", "blue")}
    pixels = {colour: np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in some]) for colour, some in photos.items()}
    known, colours = np.concatenate([pixels["red"], pixels["green"]]), ["red"] * 6 + ["green"] * 6
    features = encoded_inputs(encoder, known)
    model = Lifelong.begin(features, colours, LifelongSettings(max_tasks=2, epochs=2), torch.device("cpu"), encoder).learn(known, colours)
    path = tmp_path / "model.safetensors"
    model.save(path)
    with running(path) as client:
        for expected in (model, model.learn(pixels["blue"], ["blue"] * 6)):
            if len(expected.life.known) == 3:
                teach(client, "blue")
            answers = client.post("/predict?top=3", files=files(photos["red"] + photos["green"])).json()["answers"]
            found = [{row["label"]: row["probability"] for row in answer["top"]} for answer in answers]
            for row, shares in zip(found, expected.probabilities(known), strict=True):
                assert row == pytest.approx(dict(zip(expected.life.known, shares, strict=True)), abs=1e-4)


@pytest.mark.slow
def test_a_model_with_an_encoder_is_exported_with_it(path: Path) -> None:
    with running(path) as client:
        exported = client.get("/model.onnx").content
    assert exported[:1] == b"\x08"
    assert len(exported) > 10 << 20


def test_read_only(path: Path) -> None:
    with running(path, read_only=True) as client:
        assert labels(client, "red") == ["red"]
        changes = [("POST", "/undo"), ("POST", "/learn"), ("DELETE", "/learn"), ("DELETE", "/classes/red"), ("PATCH", "/classes/red")]
        for method, address in [*changes, ("POST", "/classes/red/images"), ("DELETE", "/classes/red/images")]:
            answer = client.request(method, address)
            assert (answer.status_code, answer.json()["error"]["type"]) == (403, "read_only"), address
        assert client.get("/classes").json()["undo"] is False


def test_metrics_and_description(path: Path) -> None:
    with running(path) as client:
        labels(client, "red", "green")
        text = client.get("/metrics").text
        assert 'afaf_requests_total{endpoint="POST /predict",status="200"} 1.0' in text
        assert "afaf_images_answered 2.0" in text
        assert "afaf_classes 2.0" in text
        described = client.get("/openapi.json").json()
        assert {"/predict", "/classes/{name}/images", "/learn", "/undo", "/model", "/health", "/metrics"} <= set(described["paths"])
        assert client.get("/health").json() == {"status": "ok"}
        for page in ("/", "/docs", "/page/app.js", "/page/style.css"):
            assert client.get(page).status_code == 200
