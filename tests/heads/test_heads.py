"""The exact heads: a head's weights depend on which images were added, and on nothing else."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from afaf.heads import HEADS
from afaf.heads.calibration import Unseen, temperature
from afaf.heads.projection import Projection
from afaf.heads.sums import Linear, Sums, packed, packed_bytes

D, K = 24, 5


def images(seed: int, n: int = 90, d: int = D, k: int = K) -> tuple[Tensor, Tensor]:
    """Non-negative features with class means, as an encoder gives them; every class is there."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(k), torch.randint(k, (n - k,), generator=draw)])
    means = torch.randn(k, d, generator=draw)
    return torch.relu(means[y] + 0.7 * torch.randn(n, d, generator=draw)), y


def same(a: Linear, b: Linear, tolerance: float = 1e-6) -> bool:
    pairs = ((a.weights, b.weights), (a.bias, b.bias))
    return all(float((p - q).abs().max()) <= tolerance * max(1.0, float(q.abs().max())) for p, q in pairs)


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.integers(1, 12))
def test_order_and_instalments_do_not_matter(name: str, seed: int, cuts: int) -> None:
    x, y = images(seed)
    whole = HEADS[name].solve(Sums.of(x, y, K))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed + 1))
    parts = [Sums.of(x[part], y[part], int(y[part].max()) + 1) for part in order.chunk(cuts)]
    assert same(HEADS[name].solve(reduce(Sums.__add__, parts)), whole)


@pytest.mark.parametrize("name", HEADS)
def test_classes_one_at_a_time_equal_all_at_once(name: str) -> None:
    x, y = images(3)
    parts = [Sums.of(x[y == c], y[y == c], c + 1) for c in range(K)]
    assert same(HEADS[name].solve(reduce(Sums.__add__, parts)), HEADS[name].solve(Sums.of(x, y, K)))


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), gone=st.integers(1, 40))
def test_removed_images_were_never_there(name: str, seed: int, gone: int) -> None:
    x, y = images(seed)
    left = Sums.of(x, y, K) - Sums.of(x[-gone:], y[-gone:], K)
    assert same(HEADS[name].solve(left), HEADS[name].solve(Sums.of(x[:-gone], y[:-gone], K)))


@pytest.mark.parametrize("name", HEADS)
def test_a_class_whose_images_are_removed_leaves_no_trace(name: str) -> None:
    x, y = images(5)
    stay = y != 2
    left = (Sums.of(x, y, K) - Sums.of(x[~stay], y[~stay], K)).take([0, 1, 3, 4])
    renumbered = torch.tensor([0, 1, -1, 2, 3])[y[stay]]
    assert same(HEADS[name].solve(left), HEADS[name].solve(Sums.of(x[stay], renumbered, K - 1)))


@pytest.mark.parametrize("name", HEADS)
def test_a_class_without_images_is_never_the_answer(name: str) -> None:
    x, y = images(6)
    head = HEADS[name].solve(Sums.of(x, y, K + 1))
    assert int((head(x).argmax(1) == K).sum()) == 0
    assert same(Linear(head.weights[:K], head.bias[:K]), HEADS[name].solve(Sums.of(x, y, K)))


def test_more_images_cannot_be_removed_than_were_added() -> None:
    x, y = images(7)
    with pytest.raises(ValueError, match="taken out"):
        Sums.of(x[:10], y[:10], K) - Sums.of(x, y, K)


@pytest.mark.parametrize("name", HEADS)
def test_sums_come_back_from_packed_triangles_bit_for_bit(name: str) -> None:
    x, y = images(8)
    sums = Sums.of(x, y, K)
    tensors = sums.to_tensors()
    assert sum(tensor.nbytes for tensor in tensors.values()) == packed_bytes(D, K)
    again = Sums.from_tensors(tensors).to_tensors()
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[part], tensors[part]) for part in tensors)
    assert torch.equal(Sums.from_tensors(tensors).gram, sums.gram)


def test_nonsense_is_no_sum() -> None:
    x, y = images(8)
    good = Sums.of(x, y, K).to_tensors()
    for name, bad in (("counts", good["counts"] + 0.5), ("gram", good["gram"][:-1]), ("totals", good["totals"] * torch.nan)):
        with pytest.raises(ValueError, match="its"):
            Sums.from_tensors({**good, name: bad})


# What each head is, against scikit-learn.


def test_nearest_mean_is_nearest_centroid() -> None:
    x, y = images(9)
    assert np.array_equal(HEADS["nearest-mean"].solve(Sums.of(x, y, K))(x).argmax(1).numpy(), NearestCentroid().fit(x, y).predict(x))


def test_lda_is_scikit_learns() -> None:
    x, y = images(10)
    n, k = len(y), K
    ours = torch.softmax(HEADS["lda"].solve(Sums.of(x, y, k), shrinkage=0.3, balance=False)(x), 1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Within(0.3, n, k)).fit(x.double().numpy(), y)
    assert np.allclose(ours, theirs.predict_proba(x.double().numpy()), atol=1e-8)


class _Within:
    """scikit-learn's LDA averages the classes' covariances by their priors; this is the pooled one, shrunk, of data of one class."""

    def __init__(self, shrinkage: float, n: int, k: int):
        self.shrinkage, self.n, self.k = shrinkage, n, k

    def fit(self, x: np.ndarray) -> _Within:
        covariance = np.cov(x.T, bias=True) * self.n / (self.n - self.k)
        d = len(covariance)
        self.covariance_ = (1 - self.shrinkage) * covariance + self.shrinkage * np.trace(covariance) / d * np.eye(d)
        return self


def test_ridge_is_scikit_learns() -> None:
    x, y = images(11)
    sums = Sums.of(x, y, K)
    centred = x.double() - x.double().mean(0)
    ours = HEADS["ridge"].solve(sums, strength=0.1, balance=False)
    theirs = Ridge(alpha=float(0.1 * (centred.T @ centred).diagonal().mean())).fit(x.double().numpy(), torch.eye(K)[y].numpy())
    assert np.allclose(ours.weights, theirs.coef_, atol=1e-8)
    assert np.allclose(ours.bias, theirs.intercept_, atol=1e-8)


@pytest.mark.parametrize("name", HEADS)
def test_a_rare_class_is_answered(name: str) -> None:
    x, y = images(12, n=900)
    keep = torch.cat([(y == c).nonzero()[:n, 0] for c, n in enumerate((150, 150, 100, 30, 8))])
    head, rest = HEADS[name].solve(Sums.of(x[keep], y[keep], K)), torch.ones(len(y), dtype=torch.bool).index_fill(0, keep, False)
    recall = [float((head(x[rest & (y == c)]).argmax(1) == c).double().mean()) for c in range(K)]
    assert min(recall) > 0.5


@pytest.mark.parametrize("name", HEADS)
def test_constant_features_and_single_images_are_no_trouble(name: str) -> None:
    x, y = images(13)
    x[:, 3] = 0.25
    for some in (slice(None), slice(K)):  # the first K images are one of each class
        head = HEADS[name].solve(Sums.of(x[some], y[some], K))
        assert bool(torch.isfinite(head.weights).all())
        assert (head(x[some]).argmax(1) == y[some]).double().mean() > 0.9


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("copies", [1, 3])
def test_one_image_of_each_class_and_copies_of_it(name: str, copies: int) -> None:
    """Nothing varies within classes: rounding must not be taken for variance."""
    x, y = images(15, n=20, d=300, k=20)
    x, y = torch.nn.functional.normalize(x).repeat(copies, 1), y.repeat(copies)
    for seed in range(3):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        sums = reduce(Sums.__add__, [Sums.of(x[part], y[part], 20) for part in order.chunk(5)])
        assert HEADS[name].solve(sums)(x).argmax(1).tolist() == y.tolist()


def test_the_projection_follows_from_encoder_and_size_alone() -> None:
    x, _ = images(14)
    torch.manual_seed(1)
    first = Projection("net", D, 64)(x)
    torch.manual_seed(2)
    assert torch.equal(first, Projection("net", D, 64)(x))
    assert not torch.equal(first, Projection("other", D, 64)(x))
    assert first.shape == (len(x), 64)
    assert float(first.min()) >= 0


@pytest.mark.parametrize("name", HEADS)
def test_a_head_on_features_that_do_not_vary_is_solved(name: str) -> None:
    """Nothing but rounding is left of their variance."""
    features = torch.rand(1, 900).expand(60, 900) * (1 + 1e-9 * torch.randn(60, 1, dtype=torch.float64))
    head = HEADS[name].solve(Sums.of(features, torch.arange(60) % 3, 3))
    assert torch.isfinite(head(features)).all()


@pytest.mark.parametrize("name", HEADS)
def test_a_class_with_sums_of_its_own_is_taken_out_without_its_images(name: str) -> None:
    x, y = images(16)
    parts = [Sums.of(some, of, K, each=True) for some, of in zip(x.chunk(4), y.chunk(4), strict=True)]
    sums = reduce(Sums.__add__, parts, Sums.empty(D, each=True))
    sums = Sums.from_tensors(sums.to_tensors())
    stay = y != 2
    assert same(HEADS[name].solve(sums.without(2)), HEADS[name].solve(Sums.of(x[stay], torch.tensor([0, 1, -1, 2, 3])[y[stay]], K - 1)))


def test_an_emptied_class_leaves_nothing_but_its_spread() -> None:
    """The sums are those of the other images, and of deviations from the class's mean, which stay without a class."""
    x, y = images(6)
    x = x.double()
    emptied, others, own = Sums.of(x, y, K).emptied(2), y != 2, x[y == 2]
    rest = Sums.of(x[others], y[others], K)
    assert torch.equal(emptied.counts, rest.counts)
    assert torch.allclose(emptied.totals, rest.totals)
    deviations = own - own.mean(0)
    assert torch.allclose(emptied.gram, rest.gram + deviations.T @ deviations)
    one = Sums.of(x[:1], y[:1], K)
    assert not one.emptied(int(y[0])).gram.any()


def test_the_sums_of_each_class_add_up_and_a_class_without_images_has_none() -> None:
    x, y = images(17)
    sums = Sums.of(x[y != 2], y[y != 2], K, each=True)
    assert sums.grams is not None
    assert not sums.grams[2].any()
    assert torch.allclose(sums.grams.sum(0), packed(sums.gram))


def unit_features(seed: int, each: int, k: int = 10, d: int = 200) -> tuple[Tensor, Tensor]:
    """Non-negative features of length 1, as encoders give them once evened out; the classes are the same for every seed."""
    means = 1 + 0.5 * torch.randn(k, d, generator=torch.Generator().manual_seed(0))
    y = torch.arange(k).repeat_interleave(each)
    x = torch.relu(means[y] + 1.6 * torch.randn(len(y), d, generator=torch.Generator().manual_seed(seed)))
    return torch.nn.functional.normalize(x), y


@pytest.mark.parametrize("name", ["lda", "ridge", "nearest-mean"])
@pytest.mark.parametrize("each", [1, 2, 4, 40])
def test_probabilities_are_no_guess_however_few_images_were_held_out(name: str, each: int) -> None:
    """Without a typical temperature, one image of each class gives an error of more than 0.4."""
    (x, y), (new, target) = unit_features(1, each), unit_features(2, 50)
    aside = torch.arange(len(y)) % 5 == 4
    taught, held = (Sums.of(x[some], y[some], 10) for some in (~aside, aside))
    head, trial = HEADS[name].solve(taught + held), HEADS[name].solve(taught)
    heat = temperature(head, (taught + held).means, trial, Unseen.of(taught, held))
    shares = torch.softmax(head(new) / heat, 1)
    right = (shares.argmax(1) == target).double().mean()
    assert abs(float(shares.amax(1).mean() - right)) < 0.2


@pytest.mark.parametrize("held_out", [0, 20])
def test_probabilities_do_not_depend_on_the_unit_of_logits(held_out: int) -> None:
    x, y = images(17)
    held = Sums.of(x[:held_out], y[:held_out], K)
    taught = Sums.of(x[held_out:], y[held_out:], K)
    unseen, means = Unseen.of(taught, held), (taught + held).means
    head, trial = HEADS["lda"].solve(taught + held), HEADS["lda"].solve(taught)
    large = Linear(50 * head.weights, 50 * head.bias)
    assert temperature(large, means, trial, unseen) == pytest.approx(50 * temperature(head, means, trial, unseen), rel=1e-6)


@pytest.mark.gpu
def test_sums_of_a_gpu_take_more_classes() -> None:
    f, y = torch.rand(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    here = Sums.of(f[:4], y[:4], 2) + Sums.of(f[4:], y[4:], 3)
    there = Sums.of(f[:4].cuda(), y[:4].cuda(), 2) + Sums.of(f[4:].cuda(), y[4:].cuda(), 3)
    assert torch.allclose(here.totals, there.totals.cpu())
