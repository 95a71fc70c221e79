"""The Python examples of README.md and of the landing page run, and give the scores that stand beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

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
    code, found = SCORE.subn(r"compare(\1, \2)", examples(page))
    exec(compile(code, page.name, "exec"), {"compare": lambda measured, shown: scores.append((measured, shown))})
    assert len(scores) == found > 0
    for measured, shown in scores:
        assert measured == pytest.approx(shown, abs=0.05)  # another processor rounds otherwise
