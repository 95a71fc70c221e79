"""A model of an encoder and a head: what it answers follows from the images that it has seen, and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from afaf.encoders import efficientnet_lite
from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Identity, Preprocessing
from afaf.errors import ConfigError, DataError, FileError
from afaf.heads import HEADS
from afaf.lifelong.base import encoded_inputs
from afaf.lifelong.choose import chosen_encoder
from afaf.lifelong.encoded import EncodedModel, HeadSettings, is_held_out
from afaf.lifelong.head_state import State
from afaf.lifelong.life import Life

SMALL = Preprocessing(16, (127.0,) * 3, (128.0,) * 3)
LABELS = ("ant", "bee", "cat", "dog")


class Colours(nn.Module):
    """Features that tell images of different colours and textures apart."""

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 12, 5, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


@pytest.fixture
def encoder() -> Encoder:
    return find_encoder(Colours(), preprocessing=SMALL)


def images(seed: int = 0, each: int = 40) -> tuple[np.ndarray, list[str]]:
    """Each class has a colour of its own."""
    rng = np.random.default_rng(seed)
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [170, 170, 40]])
    labels = np.repeat(np.arange(4), each)
    pixels = colours[labels][:, None, None] + rng.normal(0, 45, (4 * each, 16, 16, 3))
    return pixels.clip(0, 255).astype(np.uint8), [LABELS[c] for c in labels]


def taught(encoder: Encoder, x: np.ndarray, y: list[str], name: str = "lda") -> EncodedModel:
    model = EncodedModel.begin(encoder, HeadSettings(name))
    return model.learn(model.encode(x, y))


def rows(model: EncodedModel) -> Tensor:
    """Weights and biases, by label."""
    order = [model.life.known[label] for label in sorted(map(str, model.life.known))]
    return torch.cat([model.linear.weights, model.linear.bias[:, None]], 1)[order]


def same(a: EncodedModel, b: EncodedModel) -> bool:
    """The head, the temperature of its probabilities and the threshold for unknown images."""
    x, y = rows(a), rows(b)
    if x.shape != y.shape or float((x - y).abs().max()) > 1e-6 * max(1.0, float(y.abs().max())):
        return False
    return np.allclose([a.temperature, a.unknown_above or 0], [b.temperature, b.unknown_above or 0], rtol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_calls_of_any_cut_and_order_give_the_same_head(encoder: Encoder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afaf.lifelong.encoded.SIZE", 30)
    x, y = images()
    whole = taught(encoder, x, y, name)
    model = EncodedModel.begin(encoder, HeadSettings(name))
    order = np.random.default_rng(1).permutation(len(y))
    for part in np.array_split(order, 7):
        model = model.learn(model.encode(x[part], [y[i] for i in part]))
    assert same(model, whole)
    single = EncodedModel.begin(encoder, HeadSettings(name))
    for label in LABELS:
        some = [i for i in range(len(y)) if y[i] == label]
        single = single.learn(single.encode(x[some], [label] * len(some)))
    assert same(single, whole)
    assert whole.probabilities(x).argmax(1).tolist() == [LABELS.index(label) for label in y]


def test_forgotten_images_and_classes_were_never_seen(encoder: Encoder) -> None:
    x, y = images()
    model = taught(encoder, x, y)
    gone = [i for i in range(len(y)) if y[i] == "bee" or i % 5 == 0]
    left = [i for i in range(len(y)) if i not in gone]
    forgot = model.forget(model.encode(x[gone], [y[i] for i in gone]))
    assert list(forgot.life.known) == ["ant", "cat", "dog"]
    assert same(forgot, taught(encoder, x[left], [y[i] for i in left]))
    with pytest.raises(DataError):
        forgot.forget(forgot.encode(x[:20], ["ant"] * 20)).forget(forgot.encode(x[:40], ["ant"] * 40))
    with pytest.raises(DataError, match="fox"):
        model.forget(model.encode(x[:1], ["fox"]))


@pytest.mark.parametrize(("head", "option"), [("lda", {"shrinkage": 1.5}), ("ridge", {"strength": 0}), ("ridge", {"shrinkage": 0.5})])
def test_an_option_that_a_head_cannot_follow_is_named(head: str, option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        HeadSettings(head, option)
    HeadSettings("lda", {"shrinkage": 1.0})


def test_models_taught_apart_merge_into_one(encoder: Encoder) -> None:
    x, y = images()
    first = [i for i in range(len(y)) if y[i] in ("ant", "dog") or i % 2]
    second = [i for i in range(len(y)) if i not in first]
    parts = [taught(encoder, x[some], [y[i] for i in some]) for some in (first, second)]
    assert same(parts[0].merge(parts[1]), taught(encoder, x, y))
    assert same(parts[1].merge(parts[0]), taught(encoder, x, y))


def test_only_models_of_one_encoder_and_head_merge(encoder: Encoder) -> None:
    x, y = images(each=5)
    model = taught(encoder, x, y)
    for other in (taught(find_encoder(Colours(1), preprocessing=SMALL), x, y), taught(encoder, x, y, "ridge")):
        with pytest.raises(DataError, match="different"):
            model.merge(other)


def images_of(model: EncodedModel, label: str) -> int:
    return int((model.taught.counts + model.held.counts)[model.life.known[label]])


def test_a_removed_class_is_no_answer_and_learned_again_it_begins_anew(encoder: Encoder) -> None:
    x, y = images()
    wrong = ["cat" if label == "dog" else "dog" if label == "cat" else label for label in y]
    model = taught(encoder, x, wrong).copy()
    model.remove("cat")
    assert list(model.life.known) == ["ant", "bee", "dog"]
    assert model.logits(x[:3]).shape == (3, 3)
    model.remove("dog")
    cats = [i for i, label in enumerate(y) if label == "cat"]
    again = model.learn(model.encode(x[cats], ["cat"] * len(cats)))
    assert sorted(again.life.known) == ["ant", "bee", "cat"]
    assert images_of(again, "cat") == len(cats)
    assert [list(again.life.known)[i] for i in again.logits(x[cats]).argmax(1)] == ["cat"] * len(cats)
    assert again.forget(again.encode(x[cats[1:]], ["cat"] * (len(cats) - 1))).life.known  # of those learned again
    with pytest.raises(DataError, match="fox"):
        model.rename("fox", "wolf")


def test_a_class_may_take_the_name_of_a_removed_one(encoder: Encoder) -> None:
    x, y = images()
    some = [i for i, label in enumerate(y) if label in ("ant", "bee")]
    model = taught(encoder, x[some], [y[i] for i in some]).copy()
    model.remove("ant")
    model.rename("bee", "ant")
    rest = [i for i in range(len(y)) if i not in some]
    model = model.learn(model.encode(x[rest], [y[i] for i in rest]))
    model = EncodedModel.from_bytes(model.to_bytes())
    model.attach(encoder)
    assert list(model.life.known) == ["ant", *dict.fromkeys(y[i] for i in rest)]
    assert [images_of(model, label) for label in ("ant", "cat", "dog")] == [y.count(label) for label in ("bee", "cat", "dog")]
    answers = [list(model.life.known)[i] for i in model.logits(x[rest]).argmax(1)]
    assert answers == [y[i] for i in rest]


def test_a_class_that_one_model_has_removed_keeps_only_the_other_ones_images(encoder: Encoder) -> None:
    x, y = images()
    evens, odds = ([i for i in range(len(y)) if i % 2 == k] for k in (0, 1))
    first, second = (taught(encoder, x[some], [y[i] for i in some]).copy() for some in (evens, odds))
    first.remove("cat")
    second.remove("dog")
    for merged in (first.merge(second), second.merge(first)):
        assert sorted(merged.life.known) == sorted(LABELS)
        assert images_of(merged, "cat") == sum(y[i] == "cat" for i in odds)
        assert images_of(merged, "dog") == sum(y[i] == "dog" for i in evens)
        assert images_of(merged, "ant") == y.count("ant")


def test_with_sums_of_each_class_a_removed_class_was_never_seen(encoder: Encoder) -> None:
    x, y = images()
    model = EncodedModel.begin(encoder, HeadSettings(class_sums=True))
    for some in np.array_split(np.random.default_rng(0).permutation(len(y)), 3):
        model = model.learn(model.encode(x[some], [y[i] for i in some]))
    model = EncodedModel.from_bytes(model.to_bytes())
    assert model.temperature > 0  # solved before, so that a stale one would be seen
    model.remove("bee")
    left = [i for i in range(len(y)) if y[i] != "bee"]
    assert same(model, taught(encoder, x[left], [y[i] for i in left]))
    assert "bee" not in model.life.every_label


def test_a_file_brings_everything_back_but_the_encoder(encoder: Encoder, tmp_path: Path) -> None:
    x, y = images()
    model = taught(encoder, x, y)
    model.save(tmp_path / "model.safetensors")
    read = EncodedModel.load(tmp_path / "model.safetensors")
    assert read.to_bytes() == model.to_bytes()
    with pytest.raises(ConfigError, match="Colours"):  # a module of one's own has no name by which it could be found
        read.logits(x)
    with pytest.raises(FileError, match="other weights"):
        read.attach(Colours(1))
    read.attach(Colours())
    assert np.array_equal(read.logits(x), model.logits(x))
    assert read.temperature == model.temperature
    assert read.unknown_above == model.unknown_above


def test_the_largest_head_fits_into_80_megabytes(encoder: Encoder) -> None:
    model = EncodedModel.begin(encoder, HeadSettings("projection"))
    state = model.sums.placed([], 200)
    assert len(EncodedModel(model.identity, model.head, model.life, state).to_bytes()) < 80e6


@pytest.mark.parametrize("change", [{"head": {"name": "none"}}, {"encoder": {"name": "x"}}, {"life": {}}])
def test_nonsense_in_a_file_is_a_file_error(encoder: Encoder, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from afaf.storage import container

    encode = container.encode
    monkeypatch.setattr(container, "encode", lambda tensors, about: encode(tensors, {**about, **change}))
    data = taught(encoder, *images(each=3)).to_bytes()
    with pytest.raises(FileError, match="the model"):
        EncodedModel.from_bytes(data)


def test_which_images_are_held_out_follows_from_their_pixels() -> None:
    x, _ = images(each=250)
    held = [is_held_out(image, 0.2) for image in x]
    assert held == [is_held_out(image.copy(), 0.2) for image in x]
    assert 0.15 < np.mean(held) < 0.25


def test_far_images_are_told_from_known_ones(encoder: Encoder) -> None:
    x, y = images(each=100)
    model = taught(encoder, x, y)
    new, _ = images(1)
    strange = np.random.default_rng(2).integers(0, 2, (40, 16, 16, 3), dtype=np.uint8) * 255
    distance = [model.answers(next(model.encode(image[None]))[1])[1].amin(1) for image in (*new[:40], *strange)]
    assert model.unknown_above is not None
    assert np.mean([float(d) > model.unknown_above for d in distance[:40]]) < 0.3
    assert np.mean([float(d) > model.unknown_above for d in distance[40:]]) > 0.9


@pytest.mark.parametrize("name", ["lda", "ridge", "nearest-mean"])
def test_probabilities_are_as_high_as_answers_are_right(name: str) -> None:
    """Classes that overlap, and images that differ in how far off they are: Gaussian tails, or none, give more than 0.02."""
    from afaf.lifelong.calibration import calibration_error

    rng = np.random.default_rng(0)
    means = rng.normal(0, 0.6, (6, 80))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(6), n)
        spread = rng.gamma(3, 1 / 3, (len(y), 1)) + 0.2
        return np.maximum(0, 3 + means[y] + spread * rng.normal(size=(len(y), 80))).astype(np.float32), y

    head = HeadSettings(name)
    model = EncodedModel(Identity("none", "0", 80, SMALL), head, Life(0, None, "uint8", [], validation=0.2), State.empty(80))
    x, y = draw(150)
    model = model.learn([(x, torch.from_numpy(x), y.tolist())])
    new, target = draw(300)
    probabilities = model.answers(torch.from_numpy(new))[0].numpy()
    assert 0.5 < (probabilities.argmax(1) == target).mean() < 0.99
    assert calibration_error(probabilities, target) < 0.02


def test_a_file_with_notes_of_an_earlier_version_is_read(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    from afaf.storage import container

    model = taught(encoder, *images())
    encode = container.encode
    with monkeypatch.context() as patch:
        patch.setattr(container, "encode", lambda tensors, about: encode({**tensors, "notes": torch.zeros(4, 134)}, about))
        data = model.to_bytes()
    assert EncodedModel.from_bytes(data).to_bytes() == model.to_bytes()


def test_few_images_of_a_class_are_told(encoder: Encoder) -> None:
    x, y = images(each=100)
    some = [i for i in range(len(y)) if y[i] != "dog" or i % 20 == 0]
    model = taught(encoder, x[some], [y[i] for i in some])
    assert any("dog" in words for words in model.warnings())
    assert not taught(encoder, x, y).warnings()


@pytest.mark.parametrize("name", HEADS)
def test_a_first_image_that_is_held_out_is_learned(encoder: Encoder, name: str) -> None:
    """Then there is no head without held-out images that could be judged, and the class is answered all the same."""
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    held_out = [image for image in x if is_held_out(image, EncodedModel.begin(encoder, HeadSettings(name)).life.validation)]
    assert held_out
    model = EncodedModel.begin(encoder, HeadSettings(name))
    model = model.learn(model.encode(held_out[0][None], ["first"]))
    assert model.life.tasks[0].accuracy is None
    assert model.probabilities(held_out[0][None]).tolist() == [[1.0]]
    assert model.warnings() is not None


def test_single_images_grey_images_and_odd_sizes_are_learned(encoder: Encoder) -> None:
    model = EncodedModel.begin(encoder)
    rng = np.random.default_rng(0)
    for label, shape in (("grey", (1, 30, 20, 1)), ("tiny", (1, 1, 1, 3)), ("wide", (1, 4, 300, 3))):
        model = model.learn(model.encode(rng.integers(0, 256, shape, dtype=np.uint8), [label]))
    assert 0 < model.temperature < 1  # the typical one: no image was held out
    assert model.unknown_above is None
    assert np.isfinite(model.probabilities(rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8))).all()


def test_labels_spelled_the_same_are_refused(encoder: Encoder) -> None:
    x, _ = images(each=1)
    model = EncodedModel.begin(encoder)
    model = model.learn(model.encode(x[:1], [1]))
    with pytest.raises(DataError, match="spelled"):
        model.learn(model.encode(x[1:2], ["1"]))


def test_unknown_heads_and_options_are_config_errors() -> None:
    for settings in ({"name": "lad"}, {"name": "lda", "options": {"strength": 1.0}}, {"name": "lda", "options": {"shrinkage": -1}}):
        with pytest.raises(ConfigError):
            HeadSettings(**settings)


# As scikit-learn's users know it.


def test_the_classifier_learns_known_classes_too_and_survives_pickle_and_files(tmp_path: Path) -> None:
    import pickle

    from afaf import AFAFClassifier

    class_names = np.array(LABELS)
    x, y = images()
    whole = AFAFClassifier(encoder=Preset(), method="lda").fit(x, y)
    model = AFAFClassifier(encoder=Preset())
    for part in np.array_split(np.random.default_rng(0).permutation(len(y)), 4):
        model.partial_fit(x[part], class_names[[LABELS.index(y[i]) for i in part]])
    new, labels = images(1)
    assert np.allclose(model.decision_function(new), whole.decision_function(new), atol=1e-6)
    assert model.score(new, labels) > 0.95
    again = pickle.loads(pickle.dumps(model))
    model.save(tmp_path / "m.safetensors")
    read = [AFAFClassifier.load(tmp_path / "m.safetensors", encoder=Preset(), **shape) for shape in ({}, {"image_shape": (16, 16, 3)})]
    more = pickle.loads(pickle.dumps(model)).partial_fit(x[:9], y[:9]).predict(new)
    for other in (again, *read):
        assert np.array_equal(other.predict(new), model.predict(new))
        assert np.array_equal(other.partial_fit(x[:9], y[:9]).predict(new), more)
    one_by_one = np.concatenate([model.decision_function(new[i : i + 1]) for i in range(9)])
    assert np.allclose(one_by_one, model.decision_function(new[:9]), atol=1e-6)
    with pytest.raises(ValueError, match="method"):
        model.set_params(method="ridge").partial_fit(x, y)


class Preset(Colours):
    """The network above, for images at its own size."""

    preprocessing = SMALL


def test_the_classifier_needs_images_and_an_encoder_for_a_head() -> None:
    from afaf import AFAFClassifier

    x, y = images(each=2)
    with pytest.raises(ValueError, match="image_shape"):
        AFAFClassifier(encoder=Preset()).fit(x.reshape(len(x), -1), y)
    with pytest.raises(ValueError, match="encoder"):
        AFAFClassifier(method="lda").fit(x, y)
    with pytest.raises(ValueError, match="epochs"):
        AFAFClassifier(encoder=Preset(), method="lda", epochs=3).fit(x, y)
    with pytest.raises(ValueError, match="augment"):
        AFAFClassifier(encoder=Preset(), augment="crop-flip").fit(x, y)
    with pytest.raises(ValueError, match="image_shape"):
        AFAFClassifier(encoder=Preset(), method="afaf", epochs=3).fit(x.reshape(len(x), -1), y)
    with pytest.raises(ValueError, match="class_sums"):
        AFAFClassifier(class_sums=True).fit(x, y)
    with pytest.raises(ValueError, match="class_sums"):
        AFAFClassifier(encoder=Preset()).fit(x, y).set_params(class_sums=True).partial_fit(x, y)


@pytest.mark.parametrize(
    ("encoder", "method", "options", "installed", "expected"),
    [
        (None, None, (), True, None),
        ("none", "ridge", (), True, None),
        ("auto", None, (), True, "efficientnet-lite0"),
        ("auto", "ridge", (), True, "efficientnet-lite0"),
        ("auto", None, (), False, "patches"),
        ("auto", None, ("epochs",), True, None),
        ("auto", "ewc", (), True, None),
        ("patches", "lda", (), True, "patches"),
        ("patches", "ewc", ("epochs",), True, "patches"),
        ("patches", None, ("epochs", "network"), True, "patches"),
    ],
)
def test_which_encoder_a_new_model_gets(
    encoder: str | None,
    method: str | None,
    options: tuple[str, ...],
    installed: bool,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(efficientnet_lite, "installed", lambda: installed)
    assert chosen_encoder(encoder, method, options) == expected
    for wrong in (("none", "lda"), ("auto", "lad")):
        with pytest.raises(ConfigError, match=wrong[1]):
            chosen_encoder(*wrong)


@pytest.mark.parametrize(("method", "option"), [(None, "--seed"), ("lda", "--network"), ("ridge", "epochs"), ("ewc", "--grey")])
def test_an_option_does_not_replace_the_head_on_a_named_encoder(method: str | None, option: str) -> None:
    """A network on its features is far worse: it must be asked for."""
    with pytest.raises(ConfigError, match=option):
        chosen_encoder("patches", method, (option,))


@pytest.mark.parametrize(
    "how", [{"class_sums": True, "balance": False, "method": "nearest-mean"}, {"method": "afaf", "epochs": 1, "max_tasks": 2}]
)
def test_a_loaded_model_with_an_encoder_tells_what_it_was_made_with(how: dict[str, Any], tmp_path: Path) -> None:
    from sklearn.base import clone

    from afaf import AFAFClassifier

    x, y = images(each=3)
    model = AFAFClassifier(encoder="patches", random_state=0, **how).fit(x, y)
    model.save(tmp_path / "m.safetensors")
    read = AFAFClassifier.load(tmp_path / "m.safetensors", image_shape=x.shape[1:])
    assert {name: getattr(read, name) for name in how} == how
    again = clone(read).fit(x, y)
    assert type(again._lifelong) is type(model._lifelong)
    assert np.allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-6)
    unnamed = AFAFClassifier.load(tmp_path / "m.safetensors", image_shape=x.shape[1:], encoder="none")
    assert np.allclose(unnamed.predict_proba(x), model.predict_proba(x), atol=1e-6)
    with pytest.raises(ValueError, match="class_sums"):
        AFAFClassifier.load(tmp_path / "m.safetensors", image_shape=x.shape[1:], class_sums="class_sums" not in how)


def test_a_classifier_read_from_a_file_forgets_before_it_is_asked_anything(tmp_path: Path) -> None:
    from afaf import AFAFClassifier

    x, y = images(each=9)
    AFAFClassifier(encoder=Preset()).fit(x, y).save(tmp_path / "m.safetensors")
    read = AFAFClassifier.load(tmp_path / "m.safetensors", encoder=Preset())
    for ask in (read.predict, read.predict_proba, lambda vectors: read.forget(vectors, y)):
        with pytest.raises(ValueError, match="image_shape"):
            ask(x.reshape(len(x), -1))
    read.forget(x[:9], y[:9])
    assert read.classes_.tolist() == sorted(set(y[9:]))
    with pytest.raises(ValueError, match=r"shape|features"):
        read.predict(x[:, :8, :8])


def test_the_distance_of_an_image_is_that_of_the_nearest_known_class(encoder: Encoder) -> None:
    """A removed class is not among them."""
    x, y = images()
    model = taught(encoder, x, y)
    encoded = torch.cat([part[1] for part in model.encode(x[:9])])
    before = model.answers(encoded)[1].amin(1)
    model.remove(y[0])
    after = model.answers(encoded)[1].amin(1)
    assert bool((after >= before).all())
    assert not torch.equal(after, before)


def test_a_network_learns_from_features_of_an_encoder(tmp_path: Path) -> None:
    """Composition: the classifier on images answers as one on the encoder's features does."""
    from afaf import AFAFClassifier

    x, y = images(each=20)
    labels, old = np.array(y), np.isin(y, LABELS[:2])
    how = {"epochs": 15, "max_tasks": 2, "random_state": 0, "device": "cpu"}
    model, plain = AFAFClassifier(encoder=Preset(), method="afaf", **how), AFAFClassifier(**how)
    features = encoded_inputs(find_encoder(Preset()), x)
    for some in (old, ~old):
        model.partial_fit(x[some], labels[some])
        plain.partial_fit(features[some], labels[some])
    assert np.allclose(model.predict_proba(x), plain.predict_proba(features), atol=1e-6)
    assert model.score(x[old], labels[old]) > 0.6
    model.save(tmp_path / "m.safetensors")
    again = AFAFClassifier.load(tmp_path / "m.safetensors", encoder=Preset(), image_shape=(16, 16, 3))
    assert np.allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-6)
    with pytest.raises(ValueError, match="other weights"):
        AFAFClassifier.load(tmp_path / "m.safetensors", encoder=Colours(3), image_shape=(16, 16, 3)).predict(x)
