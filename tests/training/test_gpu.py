"""On a CUDA device: captured steps are the steps, runs repeat bit for bit, and no precision leaves the reference behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import afaf
from afaf.training.cuda import graphed
from afaf.training.cuda.graphed import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

STREAM, SETTINGS = "split-digits", {"learn.epochs": 3}


def run(engine: str, precision: str = "fp32", method: str = "afaf", seed: int = 0, **more: object) -> afaf.Results:
    settings = {**SETTINGS, "run.engine": engine, "run.precision": precision, **more}
    return afaf.run(STREAM, method, seed=seed, device="cuda", settings=settings)


def weights(results: afaf.Results) -> list[torch.Tensor]:
    assert results.model is not None
    return [w.cpu() for w in results.model.learner.network.parameters.weights]


def learned(*how: object, **more: object) -> list[torch.Tensor]:
    return weights(run(*how, **more))


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


@pytest.mark.parametrize("method", ["finetune", "joint", "spacenet", "ewc", "mas", "lwf", "packnet"])
def test_every_method_is_the_reference_step_by_step(method: str) -> None:
    """Batch norm, penalties, clipping, teachers and single weights as units included."""
    graphed, eager = (learned(engine, method=method) for engine in ("graphed", "eager"))
    for a, b in zip(eager, graphed, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


OTHER_STEPS = {
    "momentum, one-cycle": {"learn.momentum": 0.9, "learn.nesterov": True, "learn.weight_decay": 0.01, "learn.schedule": "one-cycle"},
    "adamw, cosine": {  # the large epsilon keeps rounding in gradients near 0 from growing
        "learn.optimiser": "adamw",
        "learn.lr": 0.002,
        "learn.weight_decay": 0.1,
        "learn.epsilon": 0.01,
        "learn.schedule": "cosine",
    },
    "step": {"learn.schedule": "step"},
    "plateau": {"learn.schedule": "plateau", "learn.patience": 1, "learn.momentum": 0.5, "run.validation": 0.2},
}


@pytest.mark.parametrize("method", ["afaf", "ewc"])
@pytest.mark.parametrize("settings", OTHER_STEPS.values(), ids=list(OTHER_STEPS))
def test_optimisers_and_schedules_are_the_reference_step_by_step(method: str, settings: dict[str, object]) -> None:
    fast, eager = (learned(engine, method=method, **settings) for engine in ("graphed", "eager"))
    for a, b in zip(eager, fast, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("schedule", ["constant", "step", "one-cycle"])
def test_no_capture_is_repeated_when_the_rate_changes(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[int] = []

    def counted(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
        captures.append(1)
        return captured(work, device)

    monkeypatch.setattr(graphed, "captured", counted)
    numbers = []
    for epochs in (6, 12):
        captures.clear()
        run("graphed", **{"learn.schedule": schedule, "learn.epochs": epochs})
        numbers.append(len(captures))
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("method", "network"),
    [(method, "small-cnn") for method in ("finetune", "ewc", "mas", "lwf", "packnet", "ridge")]
    + [(method, "mlp") for method in ("afaf", "spacenet", "isolated", "joint")],
)
def test_every_method_learns_in_half_precision(method: str, network: str) -> None:
    sparse = {"sparse.alloc": {"all": 30, "output": 20}, "sparse.density": {"all": 30, "output": 70}, "sparse.fixed.all": 10}
    more = {"network.name": network, **sparse}
    half, whole = (run("graphed", precision, method, **more) for precision in ("bf16", "fp32"))
    assert half.acc_task_il is not None
    assert whole.acc_task_il is not None
    assert abs(half.acc_task_il - whole.acc_task_il) < 15


def test_seeds_side_by_side_are_the_seeds_alone() -> None:
    """Threads of one process, each with a stream of its own: bit for bit what each gives by itself, even beside another precision."""
    runs = [("bf16", seed) for seed in range(4)] + [("fp32", 0)]
    alone = [run("graphed", precision, seed=seed) for precision, seed in runs]

    def side_stream(one: tuple[str, int]) -> afaf.Results:
        with torch.cuda.stream(torch.cuda.Stream()):
            return run("graphed", one[0], seed=one[1])

    with ThreadPoolExecutor(len(runs)) as pool:
        together = list(pool.map(side_stream, runs))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
        assert (one.R, one.R_task_il, one.confusion) == (other.R, other.R_task_il, other.confusion)


def test_graphs_that_are_gone_leave_their_memory_to_new_ones() -> None:
    """A lifelong learner captures for every task anew."""
    device, each = torch.device("cuda", torch.cuda.current_device()), 256 << 20
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + 4 * each) / total, device)
    try:
        for _ in range(12):
            captured(lambda: torch.zeros(each, dtype=torch.uint8, device=device), device)()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
