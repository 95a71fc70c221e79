"""The zoo's networks hold the tasks that their settings are made for, and a stream without a preset gets settings that work."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import afaf
from afaf.errors import CapacityError, ConfigError
from afaf.methods.base import TaskContext
from afaf.network.net import Network
from afaf.network.zoo import NETWORKS, describe
from afaf.runs.setup import set_up
from afaf.storage.invariants import broken_invariants
from afaf.streams.benchmarks import open_stream
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.task_data import TaskData
from conftest import small_stream

NARROW = {
    "alexnet": 16,
    "small-cnn": 16,
    "mlp": 100,
    "tiny-mlp": 40,
    "mobilenet-like": 32,
}  # so that a test takes seconds; of the others 16, too


def outline_of(shape: tuple[int, ...], tasks: int) -> Outline:
    return Outline("nobody's", shape, (("a", "b"),) * tasks, (100,) * tasks)


@pytest.mark.parametrize("tasks", [5, 10, 20])
@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize(("method", "strict"), [("afaf", False), ("afaf", True), ("spacenet", False), ("spacenet", True)])
def test_sizes_come_from_the_network_and_pass_the_check_of_capacity(name: str, method: str, strict: bool, tasks: int) -> None:
    """On a stream whose preset is for another network, and on one without a preset."""
    if name == "tiny-mlp":
        pytest.skip("twelve neurons: see the test of networks that are too narrow")
    for stream in ("split-cifar10", "nobody's"):
        outline = dataclasses.replace(outline_of((3, 32, 32), tasks), name=stream)
        if name == "alexnet" and stream == "split-cifar10" and not strict:
            continue  # whose preset says all
        assert set_up(outline, method, {"network": {"name": name}, "method": {"strict": strict}}).spec.name == name


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize(
    ("method", "tasks"),
    [("afaf", 5), pytest.param("afaf", 20, marks=pytest.mark.slow), ("spacenet", 10), pytest.param("spacenet", 20, marks=pytest.mark.slow)],
)
def test_all_tasks_are_allocated(name: str, method: str, tasks: int) -> None:
    """Task after task gets its connections, drawn for real, with importances and responses as they come."""
    stream = small_stream([1] * tasks, side=32, per_class=3, channels=3)
    tables = {"network": {"name": name, "width": NARROW.get(name, 16)}}
    setup = set_up(stream.outline, method, tables)
    learner = Learner.fresh(Network(setup.spec), setup.method.unit)
    draw = torch.Generator().manual_seed(0)
    for task in stream:
        context = TaskContext(task.number, task.classes, TaskData([(task.train, task.preparation)]), warn=lambda _: None)
        learner.begin(task.number, task.classes)
        setup.method.start(learner, context, 0)
        for neurons in learner.importance.neurons.values():
            neurons.copy_(torch.rand(neurons.shape, generator=draw))
        setup.method.finish(learner, context)
        learner.end(task.number)
    assert broken_invariants(learner) == []
    assert all(bool((owner == tasks).any()) for owner in learner.ledger.owners[-1:])


@pytest.mark.parametrize(("name", "width", "tasks"), [("tiny-mlp", 12, 20), ("resnet18", 1, 20), ("mlp", 15, 20), ("small-cnn", 2, 20)])
def test_a_width_that_cannot_hold_the_tasks_is_an_error_that_names_the_layer(name: str, width: int, tasks: int) -> None:
    with pytest.raises(CapacityError, match="layer '") as refused:
        set_up(outline_of((3, 32, 32), tasks), "afaf", {"network": {"name": name, "width": width}})
    assert "\n" not in str(refused.value)


def test_with_another_network_a_preset_says_only_how_to_learn() -> None:
    outline = open_stream("split-digits").outline
    preset, other = (set_up(outline, "afaf", tables).config for tables in ({}, {"network": {"name": "small-cnn"}}))
    assert other.learn == preset.learn
    assert (other.sparse, other.method) != (preset.sparse, preset.method)
    assert (preset.method.norms, other.method.norms) == ("all", "used")
    assert (
        other
        == set_up(
            dataclasses.replace(outline, name="nobody's"), "afaf", {"network": {"name": "small-cnn"}, "learn": vars(preset.learn)}
        ).config
    )
    assert set_up(outline, "afaf", {"network": {"name": "mlp"}}).config == preset
    with pytest.raises(ConfigError, match="mlp"):
        set_up(outline, "afaf", {"network": {"name": "mlp"}}, network=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)))


def test_the_width_changes_the_number_of_weights() -> None:
    for name in NETWORKS:
        assert describe(name, (3, 32, 32), 10, width=8).dense_params < describe(name, (3, 32, 32), 10).dense_params


@pytest.mark.parametrize("vectors", [False, True])
def test_a_stream_of_arrays_gets_settings_that_work(vectors: bool) -> None:
    """On digits, where the preset reaches 70 percent and a convolutional network with few connections 36."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    stream = afaf.Stream.from_arrays(digits.data if vectors else digits.images, digits.target)
    assert afaf.run(stream, "afaf", device="cpu", settings={"run.images": 60}).acc > 55
