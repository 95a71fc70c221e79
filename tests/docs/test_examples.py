"""The Python examples of the documents run; those of README.md and of the landing page give the scores that stand beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import afaf

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md"]
SHORTER = [("random_state=0)\nmodel.", "random_state=0, epochs=1)\nmodel."), ("seed=0)", 'seed=0, settings={"learn.epochs": 1})')]
SCORE = re.compile(r"print\((model\.score\(.*?\))\) +# (\d\.\d+)")


def examples(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one epoch a task, to be quick."""
    monkeypatch.chdir(tmp_path)
    code = examples(page)
    for printed, shorter in SHORTER:
        code = code.replace(printed, shorter)
    assert "epochs=1" in code
    names: dict[str, Any] = {}
    exec(compile(code, page.name, "exec"), names)
    assert len(names["model"].classes_) == 10


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_give_the_scores_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scores: list[tuple[float, float]] = []
    code, found = SCORE.subn(r"compare(\1, \2)  #", examples(page))
    exec(compile(code, page.name, "exec"), {"compare": lambda measured, shown: scores.append((measured, shown))})
    assert len(scores) == found > 0
    for measured, shown in scores:
        assert measured == pytest.approx(shown, abs=0.05)  # another processor rounds otherwise


def test_the_streams_of_the_data_page_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (10, 4, 8, 8, 3), dtype=np.uint8)
    for name, images in zip(["cat", "car", "dog", "truck"], pixels, strict=False):
        Path("photos", "train", name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(Path("photos", "train", name, f"{number}.png"))
    pairs = [(image, label) for label, images in enumerate(pixels) for image in images]
    names: dict[str, Any] = {"train_set": pairs, "test_set": pairs}
    exec(compile(examples(ROOT / "docs" / "data.md"), "data.md", "exec"), names)
    assert [len(task.classes) for task in names["stream"]] == [5, 5]


def sample(page: str, name: str) -> str:
    """The Python sample of a page that names something."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if name in block)


def test_the_stream_of_the_page_on_extending_runs() -> None:
    labels = np.repeat(["cat", "car", "dog", "truck"], 20)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    names: dict[str, Any] = {"images": images, "labels": labels}
    code = sample("extending.md", 'afaf.run(stream, "afaf")').replace('"afaf")', '"afaf", settings={"learn.epochs": 1})')
    exec(compile(code, "extending.md", "exec"), names)
    assert [list(names) for names in names["results"].class_names] == [["cat", "car"], ["dog", "truck"]]


def test_the_network_of_the_page_on_extending_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(sample("extending.md", "small_resnet"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    results = afaf.run("split-digits", "afaf", settings={"network.name": "mine:small_resnet", "learn.epochs": 1, "run.images": 20})
    assert results.dense_params == 9 * 32 + 2 * 9 * 32 * 32 + 32 * 10
