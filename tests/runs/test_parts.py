"""The parts beyond the paper: rotation self-labels, the router, and afaf-plus, which has both."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import afaf
from afaf.errors import ConfigError
from afaf.evaluation.activations import first_task_activations
from afaf.evaluation.router import ENOUGH, WEIGHTS, Router, add_images, choose_weight, judged, log_likelihoods
from afaf.evaluation.self_labels import MIRRORED, ROTATIONS, class_logits
from afaf.methods.base import Predictor
from afaf.network.net import Network
from afaf.network.zoo import describe
from afaf.runs.job import Job
from afaf.runs.setup import costs_of, set_up
from afaf.streams.tasks import Preparation, Split, Stream
from afaf.training.learner import Learner
from afaf.training.task_data import TaskData
from conftest import small_stream

QUICK: dict[str, Any] = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp", "parts.patch": 3, "parts.filters": 4}
ON = {"parts.rotations": True, "parts.router": "ridge", "parts.held_out": 0.25}


def stream() -> Stream:
    return small_stream([2, 2, 1], per_class=12)


@pytest.mark.parametrize("method", ["afaf", "spacenet", "isolated", "packnet", "finetune"])
def test_parts_work_with_every_kind_of_method(method: str) -> None:
    """Four output rows a class, three classes' columns in the answers, and what is kept is what the costs say."""
    settings = {**QUICK, **ON, **({"method.share": 30} if method in ("isolated", "packnet") else {})}
    results = afaf.run(stream(), method, device="cpu", settings=settings)
    assert results.model is not None
    learner = results.model.learner
    assert learner.network.spec.n_classes == 5 * ROTATIONS
    assert sorted(learner.seen_rows) == list(range(20))
    assert learner.seen_classes == (0, 1, 2, 3, 4)
    assert np.array(results.confusion).shape == (5, 5)
    kept = {name for name in learner.memory if name.startswith("router/")}
    costs = costs_of(Job(stream(), method, settings=settings))
    assert sum(learner.memory[name].nbytes for name in kept) == costs.kept["router: Gram matrix and sums"]
    assert results.params == costs.params


def test_a_class_answers_with_the_mean_over_rotations_of_its_matching_rows() -> None:
    results = afaf.run(stream(), "spacenet", device="cpu", settings={**QUICK, "parts.rotations": True})
    assert results.model is not None
    learner, x = results.model.learner, torch.randn(3, 1, 8, 8)
    answer = class_logits(learner.network, learner)(x)
    rows = [learner.network(torch.rot90(x, v, (2, 3))) for v in range(ROTATIONS)]
    for c in range(5):
        expected = torch.stack([rows[v][:, ROTATIONS * c + v] for v in range(ROTATIONS)]).mean(0)
        assert torch.allclose(answer[:, c], expected, atol=1e-6)


def test_mirror_images_are_answered_alike_by_classes_that_were_mirrored_in_training() -> None:
    tasks = list(stream())
    tasks[1] = replace(tasks[1], preparation=replace(tasks[1].preparation, augment="crop-flip"))
    settings = {**QUICK, **ON, "parts.mirror": True}
    results = afaf.run(Stream("mirrored", tasks), "spacenet", device="cpu", settings=settings)
    assert results.model is not None
    learner, x = results.model.learner, torch.randn(3, 1, 8, 8)
    own = list(tasks[1].classes)
    others = [c for c in range(5) if c not in own]

    def logits() -> Predictor:
        return class_logits(learner.network, learner)

    def with_router() -> Predictor:
        return Router(settings["parts.filters"], settings["parts.patch"]).predictor(learner, logits())

    kept = learner.memory[MIRRORED]
    for predictor in (logits, with_router):
        learner.memory[MIRRORED] = kept
        answer, mirrored = (predictor()(images) for images in (x, x.flip(3)))
        assert torch.allclose(answer[:, own], mirrored[:, own], atol=1e-5)
        del learner.memory[MIRRORED]
        alone = predictor()(x)
        assert torch.equal(answer[:, others], alone[:, others])
        assert not torch.allclose(answer[:, own], alone[:, own], atol=1e-4)


def test_under_strict_isolation_old_answers_of_afaf_plus_stay() -> None:
    """Class logits of the first task's classes are the same after every later task, up to the order of sums: output rows are added."""
    answers, x = [], torch.randn(4, 1, 8, 8)
    for tasks in (1, 2, 3):
        settings = {**QUICK, **ON, "network.outputs": "grown", "sparse.alloc": 33}
        results = afaf.run(stream()[:tasks], "afaf-plus", device="cpu", settings=settings)
        assert results.model is not None
        answers.append(class_logits(results.model.learner.network, results.model.learner)(x)[:, :2])
    assert torch.allclose(answers[0], answers[1], atol=1e-6)
    assert torch.allclose(answers[0], answers[2], atol=1e-6)


@pytest.mark.parametrize(("method", "settings"), [("spacenet", {"method.strict": True}), ("isolated", {"method.share": 20})])
def test_without_reuse_afaf_plus_is_spacenet_in_isolation_and_separate_networks(method: str, settings: dict[str, Any]) -> None:
    """With the same parts and sizes all three are the same computation, bit for bit: none of them can be a control of another."""
    same = {**QUICK, **ON, "network.name": "resnet10", "network.width": 15, "network.norm": "each", "network.dropout": 0}
    same |= {"sparse.alloc": 20, "sparse.density": 100, "sparse.fixed": 100, "parts.activations": True, "parts.held_out": 0.1}
    same |= {"learn.momentum": 0.9, "learn.nesterov": True, "learn.weight_decay": 5e-4, "learn.schedule": "one-cycle", "learn.warmup": 20}
    same |= {"learn.lr": 0.1, "parts.contrastive": 0.5, "parts.mirror": True, "method.start_from": "previous", "run.precision": "fp32"}
    runs = [
        afaf.run(stream(), "afaf-plus", device="cpu", settings=same),
        afaf.run(stream(), method, device="cpu", settings=same | settings),
    ]
    plus, other = (run.model.learner for run in runs if run.model is not None)
    assert runs[0].R == runs[1].R
    tensors = [
        (learner.network.parameters.weights, learner.network.parameters.biases, learner.memory.values()) for learner in (plus, other)
    ]
    assert all(torch.equal(a, b) for ours, theirs in zip(*tensors, strict=True) for a, b in zip(ours, theirs, strict=True))


def test_the_router_knows_nothing_but_sums() -> None:
    """Its head after two tasks is the head of both at once, to the precision in which sums are kept."""
    data = stream()
    results = afaf.run(data, "afaf", device="cpu", settings={**QUICK, "parts.router": "ridge", "parts.held_out": 0.25})
    assert results.model is not None
    memory = results.model.learner.memory
    router = Router(4, 3)
    everything = TaskData([(Split(task.train.images, task.train.labels), task.preparation) for task in data])
    sums = add_images(None, router._features(results.model.learner), everything)
    alone = copy.deepcopy(results.model.learner)
    router._solve(alone, sums)
    assert torch.allclose(memory["weights/router_head"], alone.memory["weights/router_head"], atol=1e-3)
    assert int(memory["router/counts"].sum()) == len(everything)


def test_only_images_that_are_flipped_while_they_are_learned_are_mirrored_in_the_sums() -> None:
    """Also where tasks with and without augmentation are learned together."""
    x, y = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8), np.arange(12) % 2
    plain, flipped = Preparation(), Preparation(augment="crop-flip")
    mixed = TaskData([(Split(x[:8], y[:8]), plain), (Split(x[8:], y[8:]), flipped)])
    both = np.concatenate([x, x[8:, :, ::-1]]), np.concatenate([y, y[8:]])
    sums, expected = (add_images(None, lambda x: x.flatten(1), data) for data in (mixed, TaskData([(Split(*both), plain)])))
    assert torch.equal(sums.counts, expected.counts)
    assert torch.allclose(sums.gram, expected.gram)


def test_a_class_of_one_image_is_learned_without_holding_it_out() -> None:
    x = np.random.default_rng(0).integers(0, 256, (33, 8, 8, 1), dtype=np.uint8)
    y = np.array([0] * 16 + [1] * 15 + [2, 3])
    data = Stream.from_arrays(x, y, x_test=x[12:], y_test=y[12:], classes_per_task=2)
    results = afaf.run(data, "afaf", device="cpu", settings={**QUICK, **ON})
    assert results.model is not None
    assert results.model.learner.memory["router/counts"].tolist() == [16, 15, 1, 1]
    assert len(results.model.learner.memory["router/spread"]) == 2


def test_the_router_weighs_the_head_by_what_makes_held_out_labels_likely() -> None:
    """Beside a network that answers at random the head gets much weight; beside one that is always right, none."""
    data = Stream.from_arrays(*_stripes(), classes_per_task=2)
    router = Router(8, 3)
    weights = []
    for network_is_right in (False, True):
        learner = Learner.fresh(Network(describe("mlp", (1, 8, 8), 4)))
        for task in data:
            learner.begin(task.number, task.classes)
            learner.end(task.number)
            split = TaskData([(task.train, task.preparation)])
            truth = {tuple(image.flatten().tolist()): int(label) for image, label in zip(*_all(split), strict=True)}

            def predict(x: torch.Tensor, truth: dict[Any, int] = truth, right: bool = network_is_right) -> torch.Tensor:
                if not right:
                    return torch.randn(len(x), 4, generator=torch.Generator().manual_seed(len(x)))
                return 50 * torch.nn.functional.one_hot(torch.tensor([truth[tuple(image.flatten().tolist())] for image in x]), 4).float()

            router.learn(learner, split, split, predict)
        weights.append(choose_weight(learner.memory["router/likelihood"], learner.memory["router/covariance"]))
    assert weights[0] >= 5
    assert weights[1] == 0


def _chosen(*worse: float, images: int) -> float:
    """The weight that so many images choose if weights from the fourth on are so much worse than the third, on average, give or take 1."""
    draws = torch.randn(images, len(WEIGHTS), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    means = torch.tensor([-9.0, -9.0, -1.0, *(-1.0 - w for w in worse), *[-9.0] * (len(WEIGHTS) - 3 - len(worse))])
    each = means + (draws - draws.mean(0)) / draws.std(0)
    return choose_weight(each.mean(0), torch.cov(each.T) / images)


def test_few_images_choose_the_largest_weight_that_they_cannot_tell_from_the_best() -> None:
    assert _chosen(0.1, images=20) == WEIGHTS[3], "a tenth of a deviation, where two standard errors are more than half of one"
    assert _chosen(0.1, 0.1, images=20) == WEIGHTS[4]
    assert _chosen(2.0, 2.0, images=20) == WEIGHTS[2]
    assert _chosen(0.1, 0.1, images=10000) == WEIGHTS[2]


def test_equal_weights_of_few_images_are_told_apart_by_nothing() -> None:
    equal, some = torch.full((len(WEIGHTS),), -1.0), torch.ones(len(WEIGHTS), len(WEIGHTS))
    assert choose_weight(equal, some) == WEIGHTS[-1]
    assert choose_weight(equal, 0 * some) == WEIGHTS[0], "many images are taken as they are"
    assert choose_weight(0 * equal, some) > 0, "before there is anything to choose by"


def test_the_scale_of_scores_has_no_say_in_their_likelihood() -> None:
    """Or a weight would be favoured whose scores happen to fit one of the temperatures."""
    scores, labels = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 6
    scores[torch.arange(200), labels] += 1
    found = [float(log_likelihoods(2.0 ** (k / 7) * scores, labels).mean()) for k in range(-7, 8)]
    assert max(found) - min(found) < 1e-3


def test_a_few_right_answers_are_no_certainty() -> None:
    few, many = (float(log_likelihoods(50 * torch.eye(5).repeat(n, 1), torch.arange(5).repeat(n)).mean()) for n in (1, 100))
    assert few < 10 * many < 0


def test_likelihoods_by_temperature_of_an_earlier_version_are_read() -> None:
    likelihood = torch.full((len(WEIGHTS), 9), -5.0)
    likelihood[4, 6] = -1.0
    covariance = torch.ones(9 * len(WEIGHTS), 9 * len(WEIGHTS))
    assert choose_weight(*judged({"router/likelihood": likelihood, "router/covariance": covariance})) == WEIGHTS[4]
    assert choose_weight(*judged({})) > 0


def test_likelihoods_of_many_images_are_taken_as_they_are() -> None:
    settings = {**QUICK, "parts.router": "ridge", "parts.held_out": 0.5}
    for per_class, few in ((2 * ENOUGH, False), (ENOUGH // 2, True)):
        results = afaf.run(small_stream([2, 2], per_class=per_class), "spacenet", device="cpu", settings=settings)
        assert results.model is not None
        assert bool(results.model.learner.memory["router/covariance"].any()) == few


def _stripes() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Four classes of stripes that differ in direction or distance, with noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4
    y, x = np.mgrid[:8, :8]
    patterns = [np.sin(y * 3), np.sin(x * 3), np.sin(y), np.sin(x)]
    return np.stack([patterns[c] + rng.normal(0, 0.3, (8, 8)) for c in labels]).astype(np.float32), labels


def _all(data: TaskData) -> tuple[torch.Tensor, torch.Tensor]:
    return data.batch(torch.arange(len(data)))


@pytest.mark.parametrize("settings", [{"parts.rotations": True}, {"parts.router": "ridge"}])
def test_vectors_are_refused(settings: dict[str, Any]) -> None:
    vectors = Stream.from_arrays(np.random.default_rng(0).normal(size=(40, 9)), np.arange(40) % 4)
    with pytest.raises(ConfigError, match=next(iter(settings)).replace(".", r"\.")):
        afaf.run(vectors, "afaf", settings=settings)


def test_a_patch_larger_than_the_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parts\.patch"):
        afaf.run(stream(), "afaf", settings={"parts.router": "ridge", "parts.patch": 9})


@pytest.mark.parametrize(("network", "method"), [("mlp", "spacenet"), ("resnet10", "spacenet"), ("mlp", "isolated")])
def test_the_first_tasks_activations_serve_all_tasks(network: str, method: str) -> None:
    """Features of an image are the same bits before and after the second task, and what is kept is what the costs say."""
    settings = {**QUICK, **ON, "network.name": network, "method.strict": True, "parts.activations": True, "network.outputs": "grown"}
    settings |= {"network.width": 12 if network == "resnet10" else 60, "sparse.alloc": 30, "sparse.density": 100}
    settings |= {"method.share": 40} if method == "isolated" else {}
    features, x = [], torch.randn(4, 1, 8, 8)
    for tasks in (1, 2):
        results = afaf.run(stream()[:tasks], method, device="cpu", settings=settings)
        assert results.model is not None
        features.append(first_task_activations(results.model.learner)(x))
    assert torch.equal(features[0], features[1])
    assert torch.allclose(features[0].norm(dim=1), torch.ones(4))
    costs = costs_of(Job(stream()[:2], method, settings=settings))
    memory = results.model.learner.memory
    assert sum(tensor.nbytes for name, tensor in memory.items() if name.startswith("router/")) == costs.kept["router: Gram matrix and sums"]
    assert results.params == costs.params


def test_one_held_out_image_of_one_class_is_enough() -> None:
    results = afaf.run(small_stream([1, 2], per_class=3), "spacenet", device="cpu", settings={**QUICK, **ON, "parts.rotations": False})
    assert results.model is not None
    assert bool(results.model.learner.memory["router/spread"].isfinite().all())


def test_activations_need_neurons_that_never_change() -> None:
    with pytest.raises(ConfigError, match=r"parts\.activations"):
        afaf.run(stream(), "spacenet", device="cpu", settings={**QUICK, **ON, "parts.activations": True})


def test_a_contrastive_term_changes_what_is_learned_and_nothing_else() -> None:
    runs = [afaf.run(stream(), "spacenet", device="cpu", settings={**QUICK, "parts.contrastive": strength}) for strength in (0.0, 0.5)]
    models = [run.model.learner for run in runs if run.model is not None]
    assert not torch.equal(models[0].network.weight(2), models[1].network.weight(2))
    assert models[0].network.spec == models[1].network.spec
    assert runs[0].params == runs[1].params


@pytest.mark.parametrize(
    ("stream_name", "network", "settings"),
    [
        ("split-cifar10", "resnet18", {}),
        ("split-cifar10", "resnet18", {"parts.filters": 512}),
        ("split-cifar100", "resnet18", {"stream.classes_per_task": 5}),
        ("sim-cifar100", "vgg11", {}),
        ("mix", "mobilenet-like", {"parts.router": "none", "parts.activations": False}),
    ],
)
def test_a_network_of_another_name_is_as_wide_as_everything_kept_allows(stream_name: str, network: str, settings: dict[str, Any]) -> None:
    job = Job(stream_name, "afaf-plus", settings={"network.name": network, **settings})
    outline = job.outline()
    budget = 4 * describe(network, outline.input_shape, outline.n_classes).dense_params
    width = set_up(outline, job.method_class, *job.tables).config.network.width
    assert width is not None
    assert width % len(outline) == 0
    assert costs_of(job).model_bytes <= budget
    wider = {**job.settings, "network.width": width + len(outline)}
    assert costs_of(replace(job, settings=wider)).model_bytes > budget


def test_under_strict_isolation_no_copies_of_biases_and_norms_are_kept() -> None:
    results = afaf.run(stream(), "afaf-plus", device="cpu", settings=QUICK)
    assert results.model is not None
    learner = results.model.learner
    assert not learner.network.snapshots
    with pytest.raises(ValueError, match="task 1"):
        learner.network.as_of(1, learner.ledger)


def test_a_network_with_fewer_classes_than_the_router_is_scored_on_its_own() -> None:
    """packnet answers a known task with the network as it was then: output rows that were added since are not among its answers."""
    settings = {**QUICK, **ON, "network.outputs": "grown", "method.share": 30}
    results = afaf.run(stream(), "packnet", device="cpu", settings=settings)
    assert all(len(row) == task for task, row in enumerate(results.R_task_il, 1))
    assert results.model is not None
    learner, x = results.model.learner, torch.randn(3, 1, 8, 8)
    router, whole = Router(settings["parts.filters"], settings["parts.patch"]), class_logits(learner.network, learner)
    fewer = router.predictor(learner, lambda images: whole(images)[:, :2])(x)
    assert torch.equal(fewer, router.predictor(learner, whole)(x)[:, :2])
