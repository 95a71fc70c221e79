"""The examples of docs/extending.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import afaf
from afaf import extend

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
QUICK = {"learn.epochs": 2, "learn.batch_size": 32}


def example(name: str) -> type:
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {name}" in block)
    names: dict = dict(vars(extend))
    exec(compile(code.replace("from __future__ import annotations", ""), "extending.md", "exec"), names)
    return names[name]


def test_a_dense_method_that_freezes_the_lower_layers() -> None:
    kept: list[torch.Tensor] = []

    class Watched(example("Half")):  # type: ignore[misc]
        def finish(self, learner: extend.Learner, context: extend.TaskContext) -> None:
            kept.append(torch.cat([learner.network.weight(1).flatten(), learner.network.bias(1)]).clone())

    results = afaf.run("split-digits", Watched, settings={**QUICK, "method.first": 2}, device="cpu")
    assert results.method == "half"
    assert all(torch.equal(kept[0], later) for later in kept[1:])


def test_a_sparse_method_that_draws_elsewhere() -> None:
    results = afaf.run(
        "split-digits", example("LowerHalf"), settings={**QUICK, "sparse.alloc.output": 10, "sparse.density.W_1": 10}, device="cpu"
    )
    assert results.model is not None
    record = results.model.learner.ledger.record_of(1)
    assert record is not None
    assert int(record.free[2].max()) < 200  # of 400 neurons, all free at first


def test_a_variant_has_the_preset_of_what_it_derives_from() -> None:
    class MyAFAF(extend.AFAF):
        name = "my-afaf"

    assert afaf.costs("split-digits", MyAFAF).params == afaf.costs("split-digits", "afaf").params


def test_a_network_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as it stands, with fewer images and epochs."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "network=module" in block)
    names: dict[str, Any] = {}
    learn = afaf.run

    def quick(*arguments: Any, **given: Any) -> afaf.Results:
        return learn(*arguments, settings={**QUICK, "run.images": 40}, device="cpu", **given)

    monkeypatch.setattr(afaf, "run", quick, raising=False)
    exec(code, names)
    assert len(names["results"].R) == 5
