"""Whether products may be rounded is a setting of the whole process. These flags can be set without a GPU."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import afaf
from afaf.errors import ConfigError
from afaf.training.cuda.kernels import language
from afaf.training.engines import find_engine
from afaf.training.precision import CPU_BF16, FLAGS, PRECISION, at_work, precision_on

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
SETTINGS = {"network.name": "small-cnn", "learn.epochs": 3}


def flags() -> list[bool]:
    return [getattr(where, flag) for where, flag in FLAGS]


def test_flags_are_set_for_a_run_and_left_as_they_were() -> None:
    before = flags()
    with PRECISION.set("fp32", CUDA):
        assert flags() == [False, False, False, True]
        with PRECISION.set("fp32", CUDA):
            pass
        assert flags() == [False, False, False, True]
    assert flags() == before
    with PRECISION.set("bf16", CUDA):
        assert flags() == [True, True, False, True]
    assert flags() == before


def test_a_run_of_another_precision_waits_and_one_of_the_same_does_not() -> None:
    entered, other_entered, leave, found = threading.Event(), threading.Event(), threading.Event(), list[list[bool]]()

    def same() -> None:
        with PRECISION.set("bf16", CUDA):  # rounds as tf32 does
            entered.set()
            leave.wait(10)

    def other() -> None:
        with PRECISION.set("fp32", CUDA):
            found.append(flags())
            other_entered.set()

    threads = [threading.Thread(target=work) for work in (same, other)]
    before = flags()
    with PRECISION.set("tf32", CUDA):
        for thread in threads:
            thread.start()
        assert entered.wait(10)
        assert not other_entered.wait(0.1)
    assert not other_entered.wait(0.1)  # `same` is still inside
    leave.set()
    for thread in threads:
        thread.join(10)
    assert found == [[False, False, False, True]]
    assert flags() == before


def test_a_run_computes_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are started on the thread's current device: a run on the second one makes that the current one."""
    current: list[torch.device] = []

    @contextlib.contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    second = torch.device("cuda:1")
    with at_work("tf32", second):
        assert current[-1:] == [second]
    for other in (CUDA, torch.device("cpu")):
        with at_work("tf32", other):
            assert current == []


@pytest.mark.parametrize("instruction", [*CPU_BF16, None])
def test_a_cpu_computes_in_bf16_only_with_instructions_for_it(instruction: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, instruction: True}, raising=False)
    assert precision_on("bf16", CPU, "compact") == ("bf16" if instruction else "fp32")
    assert precision_on("bf16", CPU, "eager") == "fp32"
    for precision in ("fp32", "tf32"):
        assert precision_on(precision, CPU, "compact") == "fp32"
    for precision in ("fp32", "tf32", "bf16"):
        assert precision_on(precision, CUDA, "graphed") == precision
    assert precision_on("bf16", CUDA, "compact") == "tf32"


def test_on_a_cpu_bf16_learns_and_weights_stay_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a CPU without the instructions, which computes the same more slowly."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    half, again, whole = (learned(precision) for precision in ("bf16", "bf16", "fp32"))
    assert weights(half)[0].dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(weights(half), weights(again), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(weights(half), weights(whole), strict=True))
    assert half.acc_task_il is not None
    assert whole.acc_task_il is not None
    assert half.acc_task_il == pytest.approx(whole.acc_task_il, abs=10)


def learned(precision: str) -> afaf.Results:
    return afaf.run("split-digits", "afaf-plus", seed=0, device="cpu", settings={**SETTINGS, "run.precision": precision})


def weights(results: afaf.Results) -> list[torch.Tensor]:
    assert results.model is not None
    return results.model.learner.network.parameters.weights


def test_without_triton_no_step_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "triton", None)
    assert find_engine("auto", CUDA).name == "compact"
    with pytest.raises(ConfigError, match="compact"):
        find_engine("graphed", CUDA)
    monkeypatch.setattr(language, "triton", object())
    assert find_engine("auto", CUDA).name == "graphed"
    assert find_engine("auto", torch.device("cpu")).name == "compact"


def test_importing_changes_neither_environment_nor_warnings() -> None:
    program = (
        "import os, warnings, torch, numpy; before = dict(os.environ), list(warnings.filters); import afaf.training.engines, afaf.api;"
        "assert (dict(os.environ), list(warnings.filters)) == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)
