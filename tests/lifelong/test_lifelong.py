"""What a model file says of its life is believed only if a model could have said it; room is what is left."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import afaf
from afaf.errors import CapacityError, DataError, FileError
from afaf.lifelong.calibration import calibration_error, fitted_temperature, held_out
from afaf.lifelong.model import Lifelong
from afaf.lifelong.settings import LifelongSettings, differences
from afaf.lifelong.training import Progress, class_weights
from afaf.runs.config import merge
from afaf.runs.job import settings_tables
from afaf.storage.state import stored_tensors
from afaf.streams.benchmarks import open_stream
from afaf.streams.tasks import Split
from afaf.training.plan import LearningPlan
from afaf.training.report import EpochReport
from afaf.training.task_data import TaskData


@pytest.fixture(scope="module")
def model() -> Lifelong:
    x = np.random.default_rng(0).normal(0, 1, (40, 6)).astype(np.float32)
    labels = ["a", "b"] * 20
    return Lifelong.begin(x, labels, LifelongSettings(max_tasks=3, epochs=1), torch.device("cpu")).learn(x, labels)


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": [["a"]]},
        {"labels": [["a", {}]]},
        {"removed": [7]},
        {"removed": ["a"]},
        {"pixels": "int"},
        {"max_tasks": "many"},
        {"validation": 3},
        {"epochs": -1},
        {"tasks": []},
        {"tasks": [{"learned": "x", "images": 1, "held_out": 1, "temperature": 0}]},
        {"tasks": [{"learned": 3, "images": 1, "held_out": 1}]},
        {"unheard": 1},
    ],
)
def test_a_life_that_makes_no_sense_is_refused(model: Lifelong, wrong: dict[str, Any], tmp_path: Path) -> None:
    about = model._with_life()
    assert about.life is not None
    replace(about, life={**about.life, **wrong}).save(tmp_path / "m")
    with pytest.raises(FileError):
        Lifelong.load(tmp_path / "m")


def test_room_counts_down_to_a_full_model(model: Lifelong) -> None:
    x = np.random.default_rng(1).normal(0, 1, (20, 6)).astype(np.float32)
    rooms, grown = [model.room(1)], model
    for label in ("c", "d"):
        grown = grown.learn(x, [label] * 20)
        rooms.append(grown.room(1))
    assert rooms == [2, 1, 0]
    assert grown.life.task_of(grown.life.known["d"]) == 3


def test_a_full_model_counts_the_tasks_that_it_holds(model: Lifelong, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that were removed: their places are free. Where they left too few connections, that is said."""
    x = np.random.default_rng(1).normal(0, 1, (20, 6)).astype(np.float32)
    for label in ("c", "d", "e", "f"):
        model = model.learn(x, [label] * 20)
        if label in "de":
            model.remove(label)
    with pytest.raises(
        CapacityError, match=r"holds 3 tasks and was made for 3 \(max_tasks\)\. Begin a new model .*; or remove all classes"
    ):
        model.check_new(["g"])
    model.remove("f")
    model.check_new(["g"])
    monkeypatch.setattr(Lifelong, "room", lambda self, n_classes: 0)
    with pytest.raises(
        CapacityError, match=r"holds 2 tasks and was made for 3 \(max_tasks\), but removed ones, 3 so far, .*max-tasks N\)$"
    ):
        model.check_new(["g"])


class Listening(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)


@pytest.mark.parametrize("negatives", ["always", "never"])
def test_a_task_that_was_hardly_learned_is_told_of(negatives: Any) -> None:
    """Whether or not images of no class, which have no right answer, were among those learned from."""
    labels = ["a", "b"] * 40
    x = np.random.default_rng(0).normal(0, 1, (80, 6)).astype(np.float32) + 3 * np.array([[-1], [1]] * 40, dtype=np.float32)
    for lr in (1e-9, 0.1):
        settings = LifelongSettings(max_tasks=2, epochs=12, lr=lr, negatives=negatives)
        first, second = Listening(), Listening()
        begun = Lifelong.begin(x, labels, settings, torch.device("cpu")).learn(x, labels, first)
        begun.learn(x, ["c"] * 80, second)
        about_task = [[words for words in heard.warnings if words.startswith("task ")] for heard in (first, second)]
        assert len(about_task[0]) == (lr == 1e-9)
        assert about_task[1] == [], "a task of a single class cannot be guessed"


class Interrupting(Progress):
    def epoch_ended(self, report: EpochReport) -> None:
        raise KeyboardInterrupt


def test_a_model_stays_as_it_is_whatever_becomes_of_learning(model: Lifelong) -> None:
    """The first task too: interrupted, it can be learned again, to the bits that it would have ended with at once."""
    x = np.random.default_rng(2).normal(0, 1, (20, 6)).astype(np.float32)
    empty = Lifelong.begin(x, ["e"] * 20, LifelongSettings(max_tasks=1, epochs=1), torch.device("cpu"))
    for begun in (empty, model):
        before = begun.to_bytes()
        with pytest.raises(KeyboardInterrupt):
            begun.learn(x, ["e"] * 20, Interrupting())
        assert begun.to_bytes() == before
        grown = begun.learn(x, ["e"] * 20)
        assert begun.to_bytes() == before
        assert "e" in grown.life.known
    again = Lifelong.begin(x, ["e"] * 20, LifelongSettings(max_tasks=1, epochs=1), torch.device("cpu"))
    at_once, later = again._learn(x, ["e"] * 20, Progress()), empty.learn(x, ["e"] * 20)
    assert np.array_equal(at_once.logits(x), later.logits(x))
    for mine, theirs in zip(stored_tensors(at_once.learner).items(), stored_tensors(later.learner).items(), strict=True):
        assert mine[0] == theirs[0]
        assert torch.equal(mine[1], theirs[1])


def test_a_model_of_a_run_answers_but_learns_no_more(tmp_path: Path) -> None:
    import afaf

    results = afaf.run("split-digits", "afaf", settings={"learn.epochs": 1, "run.images": 8}, device="cpu")
    assert results.model is not None
    results.model.save(tmp_path / "m")
    model = Lifelong.load(tmp_path / "m")
    images = np.zeros((2, 8, 8, 1), dtype=np.uint8)
    assert model.probabilities(images).shape == (2, 10)
    with pytest.raises(DataError, match="learns no more"):
        model.learn(images, ["x", "y"])


def test_small_classes_lose_nothing_to_the_held_out_part() -> None:
    labels = np.array([0] * 30 + [1] * 4)
    stay, aside = held_out(labels, 0.1, seed=0)
    assert sorted([*stay, *aside]) == list(range(34))
    assert labels[aside].tolist() == [0, 0, 0]


def test_differences_make_one_table_of_another() -> None:
    below = {"a": {"x": 1, "y": {"k": 1, "l": 2}}, "b": {"z": None, "t": {"all": 3}}}
    above = {"a": {"x": 1, "y": {"all": 5}}, "b": {"z": 4, "t": {"all": 3, "k": None}}}
    found = differences(below, above)
    assert found == {"a.y": None, "a.y.all": 5, "b.z": 4, "b.t.k": None}
    assert reduce(merge, settings_tables(None, found), below) == above


def test_every_class_weighs_the_same_up_to_a_limit() -> None:
    weights = class_weights(np.array([0] * 60 + [1] * 20))
    assert 60 * weights[0] == pytest.approx(20 * weights[1])
    assert class_weights(np.array([0] * 1000 + [1]))[1] == 10


def test_a_temperature_mends_what_was_too_sure() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=draw, dtype=torch.float64) * 2
    target = torch.multinomial(torch.softmax(logits, 1), 1, generator=draw).flatten()  # from these very probabilities
    found = fitted_temperature(3 * logits, target)
    assert found == pytest.approx(3, rel=0.1)
    errors = [calibration_error(torch.softmax(3 * logits / t, 1).numpy(), target.numpy()) for t in (1.0, found)]
    assert errors[1] < 0.03 < errors[0]


def test_the_last_quarter_of_the_epochs_has_a_tenth_of_the_rate_and_no_rewiring(model: Lifelong, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    rewired: list[int] = []
    coefficients, rewires_after = LearningPlan.coefficients, LearningPlan.rewires_after

    def watched(self: LearningPlan, lr: float, epoch: int, steps: int) -> Any:
        found = coefficients(self, lr, epoch, steps)
        rates.append(found[0][0])
        rewired.extend([epoch] if rewires_after(self, epoch) else [])
        return found

    monkeypatch.setattr(LearningPlan, "coefficients", watched)
    x = np.random.default_rng(1).normal(0, 1, (40, 6)).astype(np.float32)
    long = model.copy()
    long.life.epochs = 10
    long.learn(x, ["c", "d"] * 20)
    assert rates == [0.1] * 8 + [0.01] * 2
    assert rewired == list(range(7))


def test_the_network_as_it_stood_cannot_be_seen_after_a_class_was_removed(model: Lifelong) -> None:
    """Its connections are gone; also in a file of a version that did not note it."""
    two = model.copy()
    assert two.learner.network.as_of(1, two.learner.ledger) is not None
    two.remove("b")
    older = two.copy()
    older.learner.ledger.keeps_past = True
    for changed in (two, two.copy(), older.copy()):
        with pytest.raises(ValueError, match="changed since"):
            changed.learner.network.as_of(1, changed.learner.ledger)


@pytest.fixture(scope="module")
def turned() -> tuple[Lifelong, NDArray[Any], list[str]]:
    """A model of afaf-plus, with rotations and a router, of four classes of bright rectangles in two calls."""
    draw, labels = np.random.default_rng(0), [c for c in "abcd" for _ in range(16)]
    x = draw.integers(0, 100, (len(labels), 8, 8, 1), dtype=np.uint8)
    for image, label in zip(x, labels, strict=True):
        height, width = {"a": (2, 2), "b": (6, 2), "c": (2, 6), "d": (5, 5)}[label]
        image[1 : 1 + height, 1 : 1 + width] += 150
    settings = LifelongSettings(method="afaf-plus", max_tasks=2, settings={"parts.patch": 3, "parts.filters": 8})
    model = Lifelong.begin(x[:32], labels[:32], settings, torch.device("cpu"))
    return model.learn(x[:32], labels[:32]).learn(x[32:], labels[32:]), x, labels


def right(model: Lifelong, x: NDArray[Any], labels: list[str]) -> float:
    names = np.array(list(model.life.known))
    return float((names[model.logits(x).argmax(1)] == np.array(labels)).mean())


def test_parts_beyond_the_paper_are_in_the_answers(turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    """Four output rows a class, and one logit: also after the model was saved."""
    model, x, labels = turned
    assert model.learner.outputs_per_class == 4
    assert model.logits(x).shape == (len(x), 4)
    assert right(model, x, labels) > 0.9
    assert np.array_equal(Lifelong.from_bytes(model.to_bytes()).logits(x), model.logits(x))


def test_a_model_that_has_answered_can_be_pickled(turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    model, x, _ = turned
    answers = model.logits(x)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).logits(x), answers)


def test_a_wide_network_can_be_loaded_after_one_of_twenty_isolated_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task owns a four-hundredth of the weights between hidden layers, and nothing else in the file is as large as the network."""
    monkeypatch.setattr("afaf.storage.description.LARGE", 1 << 20)
    x, labels = np.zeros((8, 1, 4, 4), dtype=np.float32), ["a", "b"] * 4
    settings = {"network.width": 4000, "parts.router": "none", "parts.rotations": False}
    made = LifelongSettings(method="afaf-plus", network="mlp", max_tasks=20, epochs=1, settings=settings)
    model = Lifelong.begin(x, labels, made, torch.device("cpu")).learn(x, labels)
    assert np.array_equal(Lifelong.from_bytes(model.to_bytes()).logits(x), model.logits(x))


def test_all_rows_of_a_removed_class_are_gone(turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    model, x, _ = turned
    rest = model.copy()
    rest.logits(x)
    assert not rest.remove("c")
    assert list(rest.life.known) == ["a", "b", "d"]
    assert not rest.learner.ledger.owner(rest.spec.E)[8:12].any()
    assert np.array_equal(rest._logits(x), rest.copy()._logits(x)), "all logits are those of the model as it is now"
    assert np.array_equal(rest.logits(x), model.logits(x)[:, [0, 1, 3]])
    assert rest.remove("d")  # the last class of its task


@pytest.mark.parametrize("method", ["afaf-plus", "afaf", "spacenet", "isolated"])
def test_a_removed_task_makes_room_for_another(method: str, turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    """Also in lower layers, under strict isolation: the rest of a full model answers as before, and learns again and again."""
    _, x, labels = turned
    options = {"parts.patch": 3, "parts.filters": 8} if method == "afaf-plus" else {}
    options |= {"method.share": 50} if method == "isolated" else {}
    settings = LifelongSettings(method=method, max_tasks=2, epochs=2, settings=options)
    model = Lifelong.begin(x[:32], labels[:32], settings, torch.device("cpu")).learn(x[:32], labels[:32])
    for round in range(3):
        model = model.learn(x[32:], [f"{label}{round}" for label in labels[32:]])
        full, before = model.room(2), model.logits(x)[:, :2]
        model.remove(f"c{round}")
        assert model.remove(f"d{round}")
        np.testing.assert_allclose(model.logits(x), before, atol=1e-5)
        assert model.room(2) > full
        assert model.problems() == []
        assert full == 0, "the model was made for two tasks, even where the network has room for more"


def test_a_class_that_is_removed_and_learned_again_has_no_rival_in_the_router(turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    """Its first images do not stay in the sums under another class, which would halve the head's scores each time."""
    first, x, labels = turned
    model = first.copy()
    for _ in range(3):
        model.remove("c")
        model.remove("d")
        counts = model.learner.memory["router/counts"]
        assert not counts[2:].any()
        model = model.learn(x[32:], labels[32:])
    assert scored_by_router(model, x[32:], labels[32:]) > 0.9 * scored_by_router(first, x[32:], labels[32:])
    assert right(model, x, labels) > 0.9


def scored_by_router(model: Lifelong, x: NDArray[Any], labels: list[str]) -> float:
    """The mean score that the router's head gives the true class."""
    ids, router = np.array([model.life.known[label] for label in labels]), model.parts.router
    assert router is not None
    data = TaskData([(Split(x, ids), model.preparation)])
    scores = torch.cat([router._head(model.learner)(part) for part in data.batches()])
    return float(scores.gather(1, torch.from_numpy(ids)[:, None]).mean())


def test_the_neurons_that_the_router_reads_stay_when_the_first_task_is_removed(turned: tuple[Lifelong, NDArray[Any], list[str]]) -> None:
    _, x, labels = turned
    options = {"parts.patch": 3, "parts.filters": 8, "parts.activations": True, "method.strict": True}
    settings = LifelongSettings(method="afaf-plus", max_tasks=3, epochs=2, settings=options)
    model = Lifelong.begin(x[:32], labels[:32], settings, torch.device("cpu")).learn(x[:32], labels[:32]).learn(x[32:48], labels[32:48])
    assert not model.remove("a")
    assert not model.remove("b")  # the last class of the first task: its place is not free
    again = Lifelong.from_bytes(model.to_bytes()).learn(x[48:], labels[48:])
    assert again.logits(x).shape == (len(x), 2)
    assert again.remove("c")


def test_a_run_with_parts_leaves_a_model_that_answers_as_it_did(tmp_path: Path) -> None:
    stream = open_stream("split-digits")[:2]
    settings = {"learn.epochs": 2, "parts.filters": 8, "parts.mirror": True}
    results = afaf.run(stream, "afaf-plus", device="cpu", settings=settings, out=tmp_path / "run")
    model = Lifelong.load(tmp_path / "run" / "model.safetensors")
    for number, task in enumerate(stream):
        names = [str(task.class_names[task.classes.index(c)]) for c in task.test.labels.tolist()]
        assert 100 * right(model, np.asarray(task.test.images), names) == pytest.approx(results.R[-1][number])
