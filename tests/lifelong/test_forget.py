"""Images that were learned can be taken out; where the sums that are left could be of no images, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from afaf.cli.main import app
from afaf.doctor import examine
from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Preprocessing
from afaf.errors import DataError
from afaf.heads import HEADS
from afaf.heads.sums import Sums
from afaf.lifelong.encoded import EncodedModel, Part
from afaf.lifelong.head_state import HeadSettings, State

LABELS = ("ant", "bee", "cat", "dog")
EACH = 12
ALL = range(EACH * len(LABELS))


class Colours(nn.Module):
    """More features than there are images, as of photographs."""

    preprocessing = Preprocessing(16, (127.0,) * 3, (128.0,) * 3)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 80, 5, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


@cache
def small_encoder() -> Encoder:
    return find_encoder(Colours())


def pictures(seed: int) -> tuple[np.ndarray, list[str]]:
    """Classes are told apart by their colour."""
    rng = np.random.default_rng(seed)
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [170, 170, 40]])
    labels = np.repeat(np.arange(len(LABELS)), EACH)
    pixels = colours[labels][:, None, None] + rng.normal(0, 45, (len(labels), 16, 16, 3))
    return pixels.clip(0, 255).astype(np.uint8), [LABELS[c] for c in labels]


@cache
def encoded(seed: int) -> list[Part]:
    """A part for each image."""
    x, y = pictures(seed)
    model = EncodedModel.begin(small_encoder())
    return [(pixels[None], features[None], [label]) for part in model.encode(x, y) for pixels, features, label in zip(*part, strict=True)]


def some(which: Iterable[int], seed: int = 0) -> list[Part]:
    return [encoded(seed)[i] for i in which]


def relabelled(parts: list[Part], label: str) -> list[Part]:
    return [(pixels, features, [label]) for pixels, features, _ in parts]


def begun(name: str, class_sums: bool = False) -> EncodedModel:
    return EncodedModel.begin(small_encoder(), HeadSettings(name, class_sums=class_sums))


def head_of(model: EncodedModel) -> Tensor:
    order = [model.life.known[label] for label in sorted(map(str, model.life.known))]
    return torch.cat([model.linear.weights, model.linear.bias[:, None]], 1)[order]


def same(a: EncodedModel, b: EncodedModel) -> bool:
    x, y = head_of(a), head_of(b)
    return x.shape == y.shape and float((x - y).abs().max()) <= 1e-6 * max(1.0, float(y.abs().max()))


@pytest.fixture(autouse=True)
def small_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afaf.lifelong.encoded.SIZE", 150)


GENUINE = {
    "one image": [5],
    "all but one": [i for i in ALL if i != 17],
    "all but one of each class": [i for i in ALL if i % EACH],
    "a class": [*range(EACH, 2 * EACH)],
    "a class, and images of others": [*range(EACH), 20, 30],
    "half": [*ALL][::2],
}


@pytest.mark.parametrize("class_sums", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_what_was_learned_can_always_be_taken_out(name: str, class_sums: bool) -> None:
    taught = begun(name, class_sums).learn(some(ALL))
    merged = begun(name, class_sums).learn(some([*ALL][::3])).merge(begun(name, class_sums).learn(some(i for i in ALL if i % 3)))
    read = EncodedModel.from_bytes(taught.to_bytes())
    for gone in GENUINE.values():
        never = begun(name, class_sums).learn(some(i for i in ALL if i not in gone))
        for model in (taught, read, merged):
            left = model.forget(some(gone))
            assert same(left, never)
            assert not left.problems()
            assert not EncodedModel.from_bytes(left.to_bytes()).problems()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "lda" else pytest.mark.slow) for name in HEADS])
def test_images_go_one_by_one_and_come_back(name: str) -> None:
    model = begun(name).learn(some(ALL))
    order = np.random.default_rng(0).permutation(len(ALL)).tolist()
    for i in order[:-3]:
        model = model.forget(some([i]))
    assert same(model, begun(name).learn(some(order[-3:])))
    again = model.learn(some(order[:-3]))
    assert same(again, begun(name).learn(some(ALL)))
    assert not again.problems()


@pytest.mark.parametrize("name", HEADS)
def test_another_device_may_encode_them_slightly_differently(name: str) -> None:
    model = begun(name).learn(some(ALL))
    rng = torch.Generator().manual_seed(0)
    off = [(p, f * (1 + 2e-6 * torch.randn(f.shape, generator=rng)), labels) for p, f, labels in some(ALL)]
    for gone in GENUINE.values():
        left = model.forget([off[i] for i in gone])
        assert not left.problems()


NOT_LEARNED: dict[str, Callable[[], list[Part]]] = {
    "never learned": lambda: some(range(EACH // 2), 1),
    "one never learned": lambda: some([3], 1),
    "one more than was learned": lambda: [*some([0, 13, 14, 25]), *some([5], 1)],
    "an image twice": lambda: some([2, 2]),
    "of another class": lambda: relabelled(some([0, 1]), "bee"),
}


def never_held_out(model: EncodedModel, parts: list[Part]) -> EncodedModel:
    """Counts of held-out images are told apart too: here only the sums can say it."""
    return replace_validation(model, 0.0).learn(parts)


def replace_validation(model: EncodedModel, share: float) -> EncodedModel:
    model.life = replace(model.life, validation=share)
    return model


@pytest.mark.parametrize("class_sums", [False, True])
@pytest.mark.parametrize("case", NOT_LEARNED)
@pytest.mark.parametrize("name", HEADS)
def test_what_was_not_learned_is_refused_and_nothing_changes(name: str, case: str, class_sums: bool) -> None:
    model = never_held_out(begun(name, class_sums), some(ALL))
    before = model.to_bytes()
    with pytest.raises(DataError):
        model.forget(NOT_LEARNED[case]())
    assert model.to_bytes() == before
    assert not model.problems()


@pytest.mark.parametrize("name", HEADS)
def test_images_that_are_gone_cannot_go_again(name: str) -> None:
    model = never_held_out(begun(name), some(ALL)).forget(some([0, 1, 13]))
    with pytest.raises(DataError):
        model.forget(some([0, 1, 13]))


def test_a_class_left_without_images_has_sums_of_0() -> None:
    """As many images of it as there are, but others: with many images of other classes only this tells."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 1, (900, 20)).astype(np.float32), [LABELS[i % 3] for i in range(900)]
    model = small_model().learn([(x, torch.from_numpy(x), y), part_of(x[:3] + 1, "dog")])
    left = model.forget([part_of(x[:3] + 1, "dog")])
    assert "dog" not in left.life.every_label
    with pytest.raises(DataError, match="dog"):
        model.forget([part_of(x[3:6] + 1, "dog")])


def small_model() -> EncodedModel:
    """Of features that are given, far fewer than images."""
    model = EncodedModel(begun("lda").identity, HeadSettings("lda"), begun("lda").life, State.empty(20))
    return replace_validation(model, 0.0)


def part_of(features: np.ndarray, label: str) -> Part:
    return features, torch.from_numpy(features), [label] * len(features)


def wrongly_forgotten(model: EncodedModel) -> EncodedModel:
    """What an earlier version left when it was told to forget images that it had not learned."""
    state, _ = model.summed(some([0, 15, 30], 1)).placed(model.life.named, model.sums.taught.classes)
    return EncodedModel(model.identity, model.head, model.life, (model.sums - state).settled())


@pytest.mark.parametrize("class_sums", [False, True])
def test_the_doctor_finds_a_file_that_an_earlier_version_has_spoiled(class_sums: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    model = never_held_out(begun("lda", class_sums), some(ALL))
    model.save(file)
    assert examine(file).well
    spoiled = wrongly_forgotten(model)
    spoiled.save(file)
    found = examine(file)
    assert not found.well
    assert found.advice
    with pytest.raises(DataError):
        spoiled.answers(some([0])[0][1])


@pytest.mark.parametrize("class_sums", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_spoiled_file_is_not_merged(place: int, class_sums: bool, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in ("first", "second", "third")]
    whole = never_held_out(begun("lda", class_sums), some(ALL))
    for i, file in enumerate(files):
        (wrongly_forgotten(whole) if i == place else whole).save(file)
    before, out = {file: file.read_bytes() for file in files}, tmp_path / "new" / "merged.safetensors"
    result = merged(files, out)
    assert result.exit_code == 2
    assert [file for file in files if str(file) in result.stderr] == [files[place]]
    assert {file: file.read_bytes() for file in tmp_path.rglob("*")} == before
    assert merged([file for file in files if file != files[place]], out).exit_code == 0


def merged(files: list[Path], out: Path) -> Result:
    return CliRunner().invoke(app, ["merge", *map(str, files), "--model", str(out)])


def test_sums_of_a_class_are_looked_at_where_they_are_kept(tmp_path: Path) -> None:
    """Two classes whose sums of products are exchanged: those of all images are as they were."""
    model = never_held_out(begun("lda", True), some(ALL))
    grams = model.taught.grams
    assert grams is not None
    swapped: Sums = replace(model.taught, grams=grams[[1, 0, 2, 3]])
    wrong = EncodedModel(model.identity, model.head, model.life, State(swapped, model.held)).problems()
    assert [label for label in LABELS if any(label in words for words in wrong)] == ["ant", "bee"]


def test_removed_classes_are_not_named_among_the_known() -> None:
    model = begun("lda").learn(some(ALL))
    model.remove("bee")
    with pytest.raises(DataError) as told:
        model.forget(relabelled(some([0]), "fox"))
    assert "bee" not in str(told.value)
    assert "cat" in str(told.value)
    left = model.forget(some(range(EACH, 2 * EACH)))  # its images can be taken out all the same
    assert "bee" not in left.life.every_label
    with pytest.raises(DataError):
        model.forget(some(i for i in ALL if not EACH <= i < 2 * EACH))  # only images of the removed class would stay


def test_the_classifier_refuses_too() -> None:
    from afaf import AFAFClassifier

    (x, y), (new, labels) = pictures(0), pictures(1)
    model = AFAFClassifier(encoder=Colours(), method="lda").fit(x, y)
    before = model.predict_proba(new)
    with pytest.raises(ValueError, match="learned"):
        model.forget(new[::7], labels[::7])
    assert np.array_equal(model.predict_proba(new), before)
    assert model.forget(x[::7], y[::7]).score(new, labels) > 0.9
