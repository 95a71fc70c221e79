"""On a CUDA device: captured steps are the steps, runs repeat bit for bit, and no precision leaves the reference behind."""

from __future__ import annotations

import pytest
import torch

import afaf

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

STREAM, SETTINGS = "split-digits", {"learn.epochs": 3}


def learned(engine: str, precision: str = "fp32", **more: object) -> list[torch.Tensor]:
    settings = {**SETTINGS, "run.engine": engine, "run.precision": precision, **more}
    results = afaf.run(STREAM, "afaf", device="cuda", settings=settings)
    assert results.model is not None
    return [w.cpu() for w in results.model.learner.network.parameters.weights]


@pytest.mark.parametrize("network", ["mlp", "small-cnn"])
def test_captured_steps_are_the_reference_step_by_step(network: str) -> None:
    sparse = {
        "network.name": network,
        "sparse.alloc": {"all": 30, "output": 20},
        "sparse.density": {"all": 30, "output": 70},
        "sparse.fixed.all": 10,
    }
    eager, graphed = learned("eager", **sparse), learned("graphed", **sparse)
    for a, b in zip(eager, graphed, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_run_repeats_bit_for_bit() -> None:
    for precision in ("fp32", "tf32", "bf16"):
        assert all(torch.equal(a, b) for a, b in zip(learned("graphed", precision), learned("graphed", precision), strict=True))


@pytest.mark.parametrize("method", ["finetune", "joint", "spacenet"])
def test_every_method_runs_captured(method: str) -> None:
    graphed = afaf.run(STREAM, method, device="cuda", settings={"run.engine": "graphed", "run.precision": "fp32"})
    eager = afaf.run(STREAM, method, device="cuda", settings={"run.engine": "eager", "run.precision": "fp32"})
    assert graphed.acc is not None
    assert eager.acc is not None
    assert abs(graphed.acc - eager.acc) < 6
