"""What `AFAFClassifier` promises: scikit-learn's habits, and that what it has learned stays."""

from __future__ import annotations

import datetime
import pickle
import re
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import afaf
from afaf import AFAFClassifier
from afaf.encoders.identity import Preprocessing
from afaf.errors import CapacityError
from afaf.heads import HEADS
from afaf.lifelong.model import Lifelong
from afaf.storage.invariants import broken_invariants, changed_since

QUICK: dict[str, Any] = {"network": "mlp", "epochs": 25, "batch_size": 16, "random_state": 0, "device": "cpu"}
REDUCED = AFAFClassifier(
    **{**QUICK, "epochs": 10, "batch_size": 32}, max_tasks=1, validation_fraction=0.0
)  # for speed: one task, a few epochs


class Waves(nn.Module):
    """Features of pictures of 8 x 8 pixels, without weights: joblib, with which the suite compares parameters, cannot compare tensors."""

    preprocessing = Preprocessing(8, (0.0,) * 3, (255.0,) * 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.cos(5 * x), torch.sin(9 * x)], 1).flatten(1)


class Drawn(AFAFClassifier):
    """Draws vectors as pictures of a square for each feature, for scikit-learn's suite has no images."""

    def _images(self, flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        side = int(np.ceil(np.sqrt(flat.shape[1])))
        squares = np.pad(1 / (1 + np.exp(-flat.astype(np.float64))), ((0, 0), (0, side**2 - flat.shape[1])))
        places = np.arange(8) * side // 8
        grey = squares.reshape(-1, side, side)[:, places][:, :, places]
        return np.stack([grey, 1 - grey, np.full_like(grey, 0.5)], 3)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def expected_failures(estimator: AFAFClassifier) -> dict[str, str]:
    why = "it calls partial_fit on classes that fit has learned: a network refuses these, so that nothing is forgotten"
    return {"check_fit_score_takes_y": why} if estimator.encoder is None else {}


@parametrize_with_checks([REDUCED, Drawn(encoder=Waves())], expected_failed_checks=expected_failures)
def test_scikit_learns_own_suite(estimator: AFAFClassifier, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [AFAFClassifier(), *(Drawn(encoder=Waves(), method=head) for head in ("lda", "ridge", "nearest-mean"))],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_own_suite_on_the_defaults_and_every_head(estimator: AFAFClassifier, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_the_suites_one_exception_passes_where_learned_classes_are_skipped() -> None:
    from sklearn.utils.estimator_checks import check_fit_score_takes_y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_fit_score_takes_y("AFAFClassifier", clone(REDUCED).set_params(learned_classes="skip"))


def patterns(classes: Any, per_class: int = 24, *, side: int = 8, channels: int = 1, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images of noise around a pattern of each class."""
    rng = np.random.default_rng(7)
    all_patterns = rng.uniform(0, 200, (20, side, side, channels))
    labels = np.repeat(np.arange(20)[list(classes)], per_class)
    noise = np.random.default_rng(seed).normal(0, 20, (len(labels), side, side, channels))
    return np.clip(all_patterns[labels] + noise, 0, 255).astype(np.uint8), labels


def learned(*instalments: Any, **parameters: Any) -> AFAFClassifier:
    model = AFAFClassifier(**{**QUICK, "max_tasks": 4, **parameters})
    for classes in instalments:
        model.partial_fit(*patterns(classes))
    return model


def test_each_call_is_a_task_and_what_earlier_ones_learned_is_bit_identical() -> None:
    model = learned([3, 1])
    before = model._lifelong
    model.partial_fit(*patterns([0, 5, 4]))
    model.partial_fit(*patterns([9]))
    assert model.classes_.tolist() == [0, 1, 3, 4, 5, 9]
    assert model.tasks_ == [[1, 3], [0, 4, 5], [9]]
    assert changed_since(before.learner, model._lifelong.learner) == []
    assert broken_invariants(model._lifelong.learner) == []
    x, y = patterns([0, 1, 3, 4, 5], seed=1)
    assert model.score(x, y) > 0.6


def test_a_single_new_class_is_told_from_the_others() -> None:
    model = learned([0], [1])
    for label in (0, 1):
        x, y = patterns([label], seed=1)
        assert model.score(x, y) > 0.8, "both classes are found, though no call showed more than one"


def test_negatives_teach_a_single_class_what_it_is_not() -> None:
    """Without them every image may be of the class, whatever it shows."""
    mine, _ = patterns([0], seed=1)
    strange, _ = patterns([1, 2, 3], seed=1)
    logits = {negatives: learned([0], negatives=negatives)._lifelong.logits for negatives in ("auto", "never")}
    assert logits["auto"](mine).mean() > logits["auto"](strange).mean() + 2
    assert logits["never"](strange).mean() > logits["auto"](strange).mean() + 1


@pytest.mark.parametrize("labels", [["b", "a", "zebra"], [10, -3, 7], [4.0, 1.0, 2.0], [np.int8(3), np.int8(1), np.int8(2)]])
def test_labels_of_any_kind(labels: list[Any], tmp_path: Path) -> None:
    x, y = patterns([0, 1, 2])
    named = np.array(labels)[y]
    model = AFAFClassifier(**QUICK, max_tasks=2).fit(x, named)
    assert model.classes_.tolist() == sorted(set(named.tolist()))
    assert model.score(x, named) > 0.9
    model.save(tmp_path / "m")
    assert (AFAFClassifier.load(tmp_path / "m", device="cpu").predict(x) == model.predict(x)).all()


def test_numbers_and_texts_side_by_side_stay_what_they_are(tmp_path: Path) -> None:
    images, labels = patterns([2, 3])
    model = learned([0, 1], epochs=2).partial_fit(images, np.where(labels == 2, "two", "three"))
    assert model.classes_.tolist() == [0, 1, "three", "two"]
    assert set(model.predict(images).tolist()) <= {0, 1, "three", "two"}
    assert model.rename_class(0, "zero").classes_.tolist() == [1, "three", "two", "zero"]
    model.save(tmp_path / "m.safetensors")
    loaded = AFAFClassifier.load(tmp_path / "m.safetensors", device="cpu")
    assert loaded.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_array_equal(loaded.predict_proba(images), model.predict_proba(images))


def test_a_number_and_a_text_of_the_same_spelling_are_one_class() -> None:
    model = learned([0, 1], epochs=2)
    images, labels = patterns([2, 3])
    with pytest.raises(ValueError, match="already learned: 1"):
        model.partial_fit(images, np.where(labels == 2, "1", "three"))
    with pytest.raises(ValueError, match="has a class '1' already"):
        model.rename_class(0, "1")
    assert model.rename_class(1, "1").classes_.tolist() == [0, "1"]


def test_as_many_values_in_another_shape_are_refused() -> None:
    images, labels = patterns([0, 1], channels=3)
    model = AFAFClassifier(**{**QUICK, "epochs": 1}).fit(images, labels)
    channels_first = images.transpose(0, 3, 1, 2)
    for ask in (model.predict, model.predict_proba, lambda x: model.partial_fit(x, labels + 2)):
        with pytest.raises(ValueError, match=r"images of shape \(3, 8, 8\) for a model of \(8, 8, 3\)"):
            ask(channels_first)
    assert model.predict(images.reshape(len(images), -1)).tolist() == model.predict(images).tolist()


def test_a_fit_that_fails_leaves_what_was_learned() -> None:
    images, labels = patterns([0, 1])
    model = learned([0, 1], epochs=2)
    before = model.predict_proba(images)
    other, _ = patterns([0, 1], side=4)
    for wrong, words in ((labels + 0.5, "Unknown label type"), (labels, "unknown network")):  # at once; when a network is to be made
        with pytest.raises(ValueError, match=words):
            model.set_params(network="nothing").fit(other, wrong)
        assert model.n_features_in_ == 64
        np.testing.assert_array_equal(model.predict_proba(images), before)
    fresh = AFAFClassifier(**{**QUICK, "network": "nothing"})
    with pytest.raises(ValueError, match="unknown network"):
        fresh.partial_fit(images, labels)
    assert not hasattr(fresh, "n_features_in_")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", "fast"),
        ("negatives", "sometimes"),
        ("augment", "flip"),
        ("learned_classes", "forget"),
        ("validation_fraction", "a tenth"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name.removesuffix('_fraction')}.*{value}"):
        learned([0, 1], **{"epochs": 1, name: value})


def test_a_task_that_was_hardly_learned_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="task 1 was hardly learned"):
        learned([0, 1, 2], epochs=2, lr=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned([0, 1, 2])


def test_images_of_every_shape_give_the_same_answers() -> None:
    x, y = patterns([0, 1, 2])
    answers = [AFAFClassifier(**{**QUICK, "network": None}).fit(images, y).predict_proba(images) for images in (x, x[..., 0])]
    behind_a_scaler = AFAFClassifier(**{**QUICK, "network": None}, image_shape=(8, 8)).fit(x.reshape(len(x), -1), y)
    assert behind_a_scaler._lifelong.spec.name == "small-cnn"
    for found in (*answers, behind_a_scaler.predict_proba(x[..., 0])):
        np.testing.assert_array_equal(found, answers[0])


def test_a_number_means_the_same_whatever_its_type() -> None:
    x, y = patterns([0, 1])
    model = AFAFClassifier(**QUICK).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x.astype(np.float64)), model.predict_proba(x), atol=1e-5)


def test_fractions_of_white_mean_what_bytes_mean() -> None:
    images, labels = patterns([0, 1, 2])
    model = AFAFClassifier(**QUICK).fit(images, labels)
    for same in (images.astype(float), images.astype(int), images / 255):
        assert np.allclose(model.decision_function(same), model.decision_function(images), atol=1e-4)


@pytest.mark.parametrize("pixels", [float, int, lambda images: images / 255 - 0.5], ids=["floats", "ints", "centred"])
def test_an_encoder_refuses_pixels_that_it_would_misread(pixels: Any) -> None:
    images, labels = patterns(range(2), 20, channels=3)
    model = AFAFClassifier(encoder=Waves()).fit(images, labels)
    assert np.allclose(model.decision_function(images / 255), model.decision_function(images))
    wrong = images.astype(pixels) if isinstance(pixels, type) else pixels(images)
    for ask in (model.predict, lambda x: model.score(x, labels), lambda x: model.partial_fit(x, labels)):
        with pytest.raises(ValueError, match="uint8"):
            ask(wrong)


def test_a_head_learns_more_of_known_classes_whatever_happens_in_networks() -> None:
    images, labels = patterns(range(2), 20, channels=3)
    model = AFAFClassifier(encoder=Waves(), learned_classes="skip").fit(images, labels)
    before = model.decision_function(images)
    assert not np.allclose(model.partial_fit(images[:10] // 2, labels[:10]).decision_function(images), before)


@pytest.mark.parametrize("late", [{"epochs": 3}, {"validation_fraction": 0.5}, {"max_tasks": 3}])
def test_parameters_of_a_network_are_refused_by_a_head(late: dict[str, Any]) -> None:
    images, labels = patterns(range(2), 20, channels=3)
    with pytest.raises(ValueError, match=next(iter(late))):
        AFAFClassifier(encoder=Waves(), **late).fit(images, labels)
    model = AFAFClassifier(encoder=Waves()).fit(images, labels)
    with pytest.raises(ValueError, match=next(iter(late))):
        model.set_params(**late).partial_fit(images, labels)


@pytest.mark.parametrize(
    "setting",
    ["run.images=3", "run.validation=0.5", "stream.order=seed:1", "network.weights=module", "learn.epochs=7", "network.name=small-cnn"],
)
def test_settings_that_would_have_no_effect_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=re.escape(setting.split("=")[0])):
        AFAFClassifier(**QUICK, settings=[setting]).fit(*patterns([0, 1]))


@pytest.mark.parametrize("method", ["ridge", "packnet"])
def test_a_model_of_a_run_answers_as_the_run_did(method: str, tmp_path: Path) -> None:
    results = afaf.run("split-digits", method, settings={"learn.epochs": 1}, device="cpu")
    assert results.model is not None
    results.model.save(tmp_path / "m")
    model = AFAFClassifier.load(tmp_path / "m", device="cpu")
    for number, task in enumerate(afaf.open_stream("split-digits")):
        truth = [task.class_names[list(task.classes).index(c)] for c in task.test.labels.tolist()]
        assert 100 * model.score(np.asarray(task.test.images), truth) == pytest.approx(results.R[-1][number])


def test_learned_classes_are_refused_and_the_model_is_unharmed() -> None:
    model = learned([0, 1])
    before = model._lifelong.to_bytes()
    with pytest.raises(ValueError, match=r"already learned: 1\. What a task has learned is fixed"):
        model.partial_fit(*patterns([1, 2]))
    assert model._lifelong.to_bytes() == before
    model.set_params(learned_classes="skip")
    with pytest.warns(UserWarning, match="24 samples of classes that were learned already are left out"):
        model.partial_fit(*patterns([1, 2]))
    assert model.tasks_ == [[0, 1], [2]]


def test_a_full_model_says_so_and_a_removed_task_makes_room() -> None:
    model = learned([0, 1], [2], max_tasks=2)
    before = model._lifelong.to_bytes()
    with pytest.raises(ValueError, match=r"the model is full: it holds 2 tasks and was made for 2 .*larger max_tasks") as caught:
        model.partial_fit(*patterns([3]))
    assert isinstance(caught.value.__cause__, CapacityError)
    assert model._lifelong.to_bytes() == before
    model.remove_class(2).partial_fit(*patterns([3]))
    assert model.classes_.tolist() == [0, 1, 3]
    assert broken_invariants(model._lifelong.learner) == []
    with pytest.raises(ValueError, match="made for 3 classes"):
        learned([0, 1], max_classes=3).partial_fit(*patterns([2, 3]))


def test_a_removed_class_is_no_answer_and_the_others_answer_as_before() -> None:
    model = learned([0, 1, 2], [3])
    x, _ = patterns([0, 2, 3], seed=1)
    logits = model.decision_function(x)
    model.remove_class(1)
    assert model.classes_.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(model.decision_function(x), logits[:, [0, 2, 3]])
    model.partial_fit(*patterns([1]))  # and may be learned again
    assert model.classes_.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="knows no class '77'"):
        model.remove_class(77)


def test_a_class_that_was_learned_again_belongs_to_its_new_task_alone(tmp_path: Path) -> None:
    model = learned([0, 1], [2, 3], [4], epochs=1, max_tasks=3).remove_class(4).remove_class(0)
    assert model.tasks_ == [[1], [2, 3], []]
    model.partial_fit(*patterns([4, 5, 0]))
    assert model.tasks_ == [[1], [2, 3], [], [0, 4, 5]]
    model.save(tmp_path / "m")
    assert AFAFClassifier.load(tmp_path / "m", device="cpu").tasks_ == model.tasks_


def test_a_renamed_class_answers_by_its_new_name() -> None:
    x, y = patterns([0, 1])
    names = np.array(["cat", "dog"])
    model = AFAFClassifier(**QUICK).fit(x, names[y]).rename_class("cat", "tom")
    assert model.classes_.tolist() == ["dog", "tom"]
    assert model.score(x, np.array(["tom", "dog"])[y]) > 0.9
    with pytest.raises(ValueError, match="has a class 'tom' already"):
        model.rename_class("dog", "tom")


def test_pickles_are_model_files_and_learn_on_alike(tmp_path: Path) -> None:
    model = learned([0, 1])
    model.save(tmp_path / "m.safetensors")
    copies = [pickle.loads(pickle.dumps(model)), AFAFClassifier.load(tmp_path / "m.safetensors", device="cpu"), model]
    for copy in copies:
        copy.partial_fit(*patterns([2, 3]))
        assert weights_of(copy) == weights_of(copies[0])
    with pytest.raises(NotFittedError):
        clone(model).predict(patterns([0])[0])


def test_a_pickle_from_another_machine_goes_on_with_the_device_that_is_there() -> None:
    model = learned([0, 1], epochs=1).set_params(device="cuda:99")
    copy = pickle.loads(pickle.dumps(model))
    assert copy.get_params()["device"] == "auto"
    assert copy.partial_fit(*patterns([2])).tasks_ == [[0, 1], [2]]


def weights_of(model: AFAFClassifier) -> list[bytes]:
    return [t.numpy().tobytes() for t in model._lifelong.learner.network.parameters.weights]


@cache
def begun() -> bytes:
    return pickle.dumps(learned([0, 1], epochs=2))


LATE: list[tuple[str, Any, Any]] = [  # a parameter, a value that comes too late, and the value the model has
    ("max_tasks", 9, 4),
    ("max_classes", 12, None),
    ("network", "small-cnn", "mlp"),
    ("epochs", 1, 2),
    ("epochs", None, 2),
    ("batch_size", 4, 16),
    ("lr", 1e-6, 0.1),
    ("augment", "crop-flip", "none"),
    ("negatives", "never", "auto"),
    ("balance", False, True),
    ("validation_fraction", 0.3, 0.1),
    ("image_shape", (4, 16, 1), (8, 8, 1)),
    ("settings", {"sparse.drop": 10.0}, None),
    ("random_state", 1, 0),
]


@pytest.mark.parametrize(("name", "value", "had"), LATE)
def test_what_was_decided_when_the_model_was_begun_is_refused_later(name: str, value: Any, had: Any, tmp_path: Path) -> None:
    """Instead of being shown by get_params and ignored by partial_fit."""
    model = pickle.loads(begun())
    before = model._lifelong.to_bytes()
    model.save(tmp_path / "m")
    words = rf"^{name}={re.escape(repr(value))}: decided when a model is begun, and this one has {name}={re.escape(repr(had))}\. "
    with pytest.raises(ValueError, match=words):
        AFAFClassifier.load(tmp_path / "m", device="cpu", **{name: value})
    first = model.get_params()[name]
    for late, again in ((model, first), (AFAFClassifier.load(tmp_path / "m", device="cpu"), had)):
        with pytest.raises(ValueError, match=words):
            late.set_params(**{name: value}).partial_fit(*patterns([2, 3]))
        assert late._lifelong.to_bytes() == before
        late.set_params(**{name: again}).partial_fit(*patterns([2, 3]))


def test_fit_begins_anew_with_any_parameters() -> None:
    model = learned([0, 1], epochs=2).set_params(epochs=1, network="small-cnn", max_tasks=2).fit(*patterns([0, 1]))
    assert model._lifelong.made_with.network == "small-cnn"
    assert model.partial_fit(*patterns([2])).tasks_ == [[0, 1], [2]]


def test_a_setting_that_comes_too_late_is_named_after_its_parameter() -> None:
    with pytest.raises(ValueError, match=r"^epochs=7, lr=0\.5: decided .* this one has epochs=2, lr=0\.1\."):
        learned([0, 1], epochs=2).set_params(settings=["learn.lr=0.5", "learn.epochs=7"]).partial_fit(*patterns([2]))


def test_what_is_not_decided_when_a_model_is_begun_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    model = learned([0, 1], epochs=2).set_params(verbose=2, learned_classes="skip", device="auto", random_state=None)
    with pytest.warns(UserWarning, match="left out"):
        model.partial_fit(*patterns([1, 2]))
    assert model.tasks_ == [[0, 1], [2]]
    assert "epoch 2/2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'abacus' is not a device"):
        model.set_params(device="abacus").partial_fit(*patterns([3]))


MADE_WITH: list[dict[str, Any]] = [
    {},
    {"max_tasks": None, "max_classes": 6, "lr": 0.05, "validation_fraction": 0.25, "balance": False, "negatives": "never"},
    {"augment": "crop-flip", "image_shape": (8, 8), "settings": ["sparse.density=25", "sparse.drop=10"], "random_state": 7},
    {"network": None, "epochs": None, "settings": {"network.name": "mlp", "method.l_reuse": 2, "sparse.density": 25, "learn.epochs": 3}},
]
BY_IMAGES = {"max_tasks": None, "network": None, "epochs": None, "batch_size": None, "settings": {"learn.batch_size": 64}}


@pytest.mark.parametrize("parameters", [*MADE_WITH, pytest.param(BY_IMAGES, marks=pytest.mark.slow)])
def test_a_loaded_model_tells_what_it_was_made_with(parameters: dict[str, Any], tmp_path: Path) -> None:
    """Its clone learns what it has learned, to the bit; and the parameters that it was begun with are no change."""
    images, labels = patterns([0, 1], per_class=10)
    more = patterns([2], per_class=10)
    given = {**QUICK, "max_tasks": 4, "epochs": 2, **parameters}
    model = AFAFClassifier(**given).fit(images, labels)
    model.save(tmp_path / "m")
    loaded = AFAFClassifier.load(tmp_path / "m", device="cpu")
    told = loaded.get_params()
    assert told["network"] is not None
    assert told["max_tasks"] == model._lifelong.life.max_tasks
    assert told["random_state"] == given["random_state"]
    again = clone(loaded).fit(images, labels)
    assert weights_of(again) == weights_of(model)
    continued = [one.partial_fit(*more) for one in (model, loaded, again, AFAFClassifier.load(tmp_path / "m", **given))]
    assert all(weights_of(one) == weights_of(model) for one in continued)
    assert again._lifelong.life.epochs == model._lifelong.life.epochs
    assert again._lifelong.config == model._lifelong.config


def test_a_model_of_a_run_was_not_made_with_these_parameters(tmp_path: Path) -> None:
    results = afaf.run("split-digits", "afaf", settings={"learn.epochs": 1, "run.images": 8}, device="cpu")
    assert results.model is not None
    results.model.save(tmp_path / "m")
    assert AFAFClassifier.load(tmp_path / "m", device="cpu").get_params() == AFAFClassifier(device="cpu").get_params()


def test_rare_classes_count_more_unless_told_otherwise() -> None:
    x, y = patterns([0, 1], 60)
    few = np.r_[np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:3]]
    noisy = np.clip(x.astype(int) + np.random.default_rng(0).normal(0, 120, x.shape), 0, 255).astype(np.uint8)  # so that prior odds matter

    def lead_of_the_rare(balance: bool) -> float:
        model = AFAFClassifier(**{**QUICK, "epochs": 6}, max_tasks=1, balance=balance).fit(noisy[few], y[few])
        return float(model.decision_function(noisy).mean())

    assert lead_of_the_rare(True) > lead_of_the_rare(False) + 0.1


def test_scikit_learns_tools_work_on_vectors() -> None:
    x, y = patterns([0, 1, 2], 20)
    x = x.reshape(len(x), -1) * np.linspace(0.01, 10, 64)
    pipeline = make_pipeline(StandardScaler(), AFAFClassifier(**QUICK))
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.9
    search = GridSearchCV(pipeline, {"afafclassifier__lr": [1e-6, 0.1]}, cv=2).fit(x, y)
    assert search.best_params_ == {"afafclassifier__lr": 0.1}
    assert search.best_estimator_.score(x, y) > 0.9


def test_threads_that_teach_one_object_lose_nothing() -> None:
    model = AFAFClassifier(**{**QUICK, "epochs": 2}, max_tasks=4)
    images, labels = patterns(range(8))
    threads = [
        threading.Thread(target=model.partial_fit, args=(images[labels // 2 == task], labels[labels // 2 == task])) for task in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(sorted, model.tasks_)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(images) == model.predict(images)).all()
    assert not hasattr(clone(model), "tasks_")


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a\0", "b"] * 4, dtype=object),
        np.array(["2024-01-01", "2024-01-02"] * 4, dtype="datetime64[D]"),
        np.array([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)] * 4, dtype=object),
    ],
    ids=["nul", "datetime64", "date"],
)
def test_labels_that_no_model_can_hold_are_value_errors(labels: Any) -> None:
    model = AFAFClassifier(**QUICK)
    with pytest.raises(ValueError):  # noqa: PT011
        model.fit(np.random.default_rng(0).random((8, 4)), labels)
    assert not hasattr(model, "classes_")


def test_a_million_features_are_refused() -> None:
    with pytest.raises(ValueError, match="1,000,000 features"):
        AFAFClassifier(**QUICK).fit(np.zeros((4, 1_000_000), dtype=np.float32), [0, 1, 0, 1])


def test_a_want_of_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own message, from an allocation that no machine grants."""

    def too_much(*_: Any, **__: Any) -> None:
        torch.empty(1 << 50)

    monkeypatch.setattr(Lifelong, "learn", too_much)
    images, labels = patterns([0, 1])
    with pytest.raises(MemoryError):
        AFAFClassifier(**QUICK).fit(images, labels)


@pytest.mark.parametrize("network", ["mlp", "small-cnn", "resnet10", pytest.param("alexnet", marks=pytest.mark.slow)])
def test_an_answer_does_not_depend_on_the_images_asked_with_it(network: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    model = AFAFClassifier(network=network, epochs=1, random_state=0, device="cpu", validation_fraction=0.0).fit(x, np.arange(12) % 3)
    many = np.concatenate([x] * 22)  # more than a batch of 256
    alone = np.concatenate([model.decision_function(image[None]) for image in x])
    assert np.allclose(model.decision_function(many)[-12:], alone, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("head", HEADS)
def test_answers_of_an_encoder_do_not_depend_on_the_images_asked_with_it(head: str) -> None:
    """Products with one row are computed otherwise than with many."""
    x, y = patterns(range(3), 10, channels=3)
    torch.manual_seed(0)
    module = nn.Sequential(Waves(), nn.Linear(576, 96), nn.ReLU())
    module.preprocessing = Waves.preprocessing  # type: ignore[assignment]
    model = AFAFClassifier(encoder=module, method=head).fit(x, y)
    many = np.concatenate([x] * 9)
    alone = np.concatenate([model.decision_function(image[None]) for image in x])
    assert np.allclose(model.decision_function(many)[-30:], alone, rtol=1e-7, atol=1e-7)


def test_samples_are_forgotten_as_if_they_had_never_been_learned() -> None:
    x, y = patterns(range(3), 20, channels=3)
    stay = (y < 2) & (np.arange(len(y)) % 5 != 0)
    model = AFAFClassifier(encoder=Waves()).fit(x, y).forget(x[~stay], y[~stay])
    assert model.classes_.tolist() == [0, 1]
    assert np.allclose(model.decision_function(x), AFAFClassifier(encoder=Waves()).fit(x[stay], y[stay]).decision_function(x), atol=1e-6)
    with pytest.raises(ValueError, match="'0'"):
        model.forget(x[y == 0], y[y == 0])
    with pytest.raises(ValueError, match="forget"):
        learned([0, 1], epochs=1).forget(*patterns([0]))


def test_a_users_module_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    module[1].eval()
    before = [(part.training, *(tensor.clone() for tensor in part.state_dict().values())) for part in module]
    x, y = patterns(range(2), 8, channels=3)
    answers = [AFAFClassifier(encoder=module).fit(x, y).decision_function(x) for _ in range(2)]
    assert np.array_equal(*answers)
    after = [(part.training, *part.state_dict().values()) for part in module]
    assert all(a[0] == b[0] and all(map(torch.equal, a[1:], b[1:])) for a, b in zip(before, after, strict=True))
    assert all(parameter.requires_grad and parameter.is_contiguous() for parameter in module.parameters())
