"""Step by step beside the authors' released code: `python -m benchmarks.released CHECKOUT`.

CHECKOUT is a folder with their CL.py (repository GhadaSokar/AFAF), which is read there and not part of this project. Four tasks of two
classes, the last two reusing, are learned by both on the same images in the same order, in double precision, with biases and gradients
as in the released code (`method.biases=unfixed method.block_gradient=false`). Their code gets the initial network, and where it draws, the
draws of this project: which free neurons a task takes, and which of the places where it may have connections. Everything else each side
finds out for itself: candidates, which places these are, steps, importance, what is dropped and grown, which neurons become fixed, what
comes out for a test image. Where importances are equal numpy decides in their code, in no documented order; there it is given the rule of
this project, the lowest index first.

Theirs is the class in CL.py alone. Their network and their main program are written anew below, small, without dropout, batch norm and
augmentation: these are not compared. Nor does it hold for any settings: they take for a step how far a weight moved after rounding, 0
where it is lost in it, this project takes lr x gradient. With lr 0.3, when gradients vanish or explode, connections of an importance near 0
(1e-35) are dropped in another order with 2 of 12 seeds, and a third diverges.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from afaf.engine.eager import EagerEngine
from afaf.learning.feed import Feed, Moment
from afaf.learning.learner import Learner
from afaf.learning.settings import LearnSettings, Settings, SparseSettings
from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import Lesson
from afaf.network.ledger import Allocation
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.streams.tasks import Preparation, Split, Stream, Task
from afaf.subnets.allocate import Request, Subnetwork
from benchmarks.provenance import write_results

TASKS, CLASSES, SIDE, PER_CLASS = 4, 2, 16, 70
WIDTHS = (16, 20, 24, 60, 80)  # of the paper's network, made small: conv 1-3, dense 1-2
FIRST_REUSE, L_REUSE, SHARE = 3, 4, 30
KINDS = ("conv", "conv", "conv", "fc", "output")  # which percentages hold for these layers
ALLOC = {"conv": 70, "fc": 40, "output": 20}
FIXED = {"conv": 10, "fc": 30, "output": 100}
DENSITY = {"conv": 30, "fc": 30, "output": 80}
LEARN = LearnSettings(epochs=12, batch_size=16, lr=0.1)  # so that most of the tasks are learned
LAST = len(WIDTHS) + 1  # l of the output weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path, help="a folder with the authors' CL.py")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/released.json"))
    arguments = parser.parse_args()
    code = arguments.checkout / "CL.py"
    if not code.is_file():
        sys.exit(f"{code}: no such file: name the folder that holds the authors' released code (GhadaSokar/AFAF)")
    try:
        rows = [row for seed in range(arguments.seeds) for row in beside(code, seed)]
    except DrawsDifferError as error:
        sys.exit(f"the two differ: {error}")
    learned = {row["seed"]: row["learned"] for row in rows}
    Console().print(as_table(rows))
    print(f"Tasks of which more than nine in ten test images were told apart: {sum(learned.values())} of {TASKS * len(learned)}")
    write_results(arguments.out, rows, torch.device("cpu"))
    if any(row["largest"] > row["allowed"] for row in rows):
        sys.exit("the two differ")


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("what is compared", "seeds", "largest difference", "allowed")
    for what in dict.fromkeys(row["what"] for row in rows):
        found = [row for row in rows if row["what"] == what]
        table.add_row(what, str(len(found)), f"{max(row['largest'] for row in found):.1e}", f"{found[0]['allowed']:.0e}")
    return table


# ---- one run of both


def beside(code: Path, seed: int) -> list[dict[str, Any]]:
    """Learn the stream with this project's code; theirs does after it what it did, and every number is compared."""
    stream, spec = small_stream(seed), small_network()
    method = Watched(
        AFAFOptions(first_reuse=FIRST_REUSE, l_reuse=L_REUSE, biases="unfixed", block_gradient=False),
        Settings(LEARN, SparseSettings(alloc={**ALLOC}, density={**DENSITY}, fixed={**FIXED})),
    )
    method.check(spec, stream.outline)
    learner = Learner.fresh(Network(spec, seed, dtype=torch.float64), "connection")
    with double_precision():
        theirs, compared, learned = Theirs(code, learner), Compared(), 0
        for task in stream:
            lesson = Lesson(task.number, task.classes, Feed([(task.train, task.preparation)], dtype=torch.float64))
            learner.begin(lesson.task, lesson.classes)
            method.start(learner, lesson, 0)
            theirs.start(learner, lesson, method.newest, compared)
            epochs = iter(range(LEARN.epochs))

            def after_epoch(_: Any, lesson: Lesson = lesson, epochs: Any = epochs) -> None:
                theirs.learn_epoch(lesson, Moment(learner.seed, lesson.task, 0, next(epochs)))
                theirs.compare(learner, lesson.task, compared)
                theirs.compare_importance(learner, compared)

            EagerEngine().learn(learner, method.plan(learner, lesson, 0), lesson.feed, after_epoch)
            method.finish(learner, lesson)
            learner.end(lesson.task)
            images = torch.cat([pixels(seen.test) for seen in stream[: lesson.task]])
            answer = theirs.answer(images, learner)
            compared.note("logits of test images, classes seen so far", answer - seen_logits(learner, images))
            right = answer[-len(task.test) :, list(task.classes)].argmax(1) == torch.from_numpy(task.test.labels) - task.classes[0]
            learned += bool(right.to(torch.float64).mean() > 0.9)
    return [
        {"seed": seed, "learned": learned, "what": what, "largest": largest, "allowed": compared.allowed(what)}
        for what, largest in compared.largest.items()
    ]


class Watched(AFAF):
    """AFAF, of which can be seen what it drew for the newest task."""

    newest: Subnetwork

    def allocate(self, learner: Learner, lesson: Lesson, request: Request) -> Subnetwork:
        self.newest = super().allocate(learner, lesson, request)
        return self.newest


class Compared:
    """The largest difference of each kind. Numbers may differ by rounding, what is counted may not."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    def note(self, what: str, difference: Tensor) -> None:
        self.largest[what] = max(self.largest.get(what, 0.0), float(difference.abs().nan_to_num(nan=torch.inf).max()))

    def note_sets(self, what: str, one: Tensor, other: Tensor) -> None:
        self.note(what, (one != other).sum())

    def note_neurons(self, what: str, listed: Iterable[int], marked: Tensor) -> None:
        self.note(what, torch.tensor(len({int(n) for n in listed} ^ set(marked.nonzero().flatten().tolist()))))

    def allowed(self, what: str) -> float:
        return 0.0 if what.startswith("which") else 1e-9


def small_network() -> NetworkSpec:
    a, b, c, d, e = WIDTHS
    hidden = (
        Layer("conv", a),
        Layer("conv", b, ("relu", "pool")),
        Layer("conv", c, ("relu", "pool")),
        Layer("dense", d),
        Layer("dense", e),
    )
    return NetworkSpec("small", (3, SIDE, SIDE), hidden, TASKS * CLASSES, 0.0)


def small_stream(seed: int) -> Stream:
    """Classes of large patches, that can be told apart through noise."""
    draw = np.random.default_rng(seed)
    means = 4 * draw.normal(size=(TASKS * CLASSES, 4, 4, 3)).repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)

    def split(classes: tuple[int, ...], each: int) -> Split:
        labels = np.repeat(np.array(classes), each)
        return Split((means[labels] + draw.normal(size=(len(labels), SIDE, SIDE, 3))).astype(np.float32), labels)

    tasks = []
    for number in range(1, TASKS + 1):
        classes = tuple(range((number - 1) * CLASSES, number * CLASSES))
        names = tuple(f"class {c}" for c in classes)
        tasks.append(Task(number, classes, names, split(classes, PER_CLASS), split(classes, 10), Preparation((0.0,), (1.0,))))
    return Stream("small", tasks)


def pixels(split: Split) -> Tensor:
    return torch.from_numpy(split.images).permute(0, 3, 1, 2).to(torch.float64)


def seen_logits(learner: Learner, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = learner.network(images)
    return logits[:, : len(learner.seen_classes)]


@contextlib.contextmanager
def quietly() -> Any:
    """Their code tells much, and PyTorch something about it."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def double_precision() -> Any:
    """Their code makes tensors of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# ---- their side


def load(path: Path, draws: Draws) -> ModuleType:
    """Their code, with numpy as it is given here."""
    spec = importlib.util.spec_from_file_location("released", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file is, it is not ours
        sys.exit(f"{path}: cannot be read as Python ({type(error).__name__}: {error}): is it the authors' CL.py?")
    if not hasattr(module, "CL"):
        sys.exit(f"{path}: has no class CL: is it the authors' CL.py?")
    module.np = TheirNumpy(draws)  # type: ignore[attr-defined]
    return module


class TheirNumpy:
    """Of equals the lowest index first: they take the first of a partition, and the last of a sort."""

    def __init__(self, draws: Draws):
        self.random = draws

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def argpartition(self, values: Any, count: int) -> Any:
        return np.argsort(np.asarray(values), kind="stable")

    def argsort(self, values: Any) -> Any:
        return np.argsort(-np.asarray(values), kind="stable")[::-1]


class DrawsDifferError(Exception):
    """What they draw from is not what this project drew from."""


Numbers = NDArray[np.int64]
Answer = Callable[[Numbers], Numbers]  # from what they draw from to what is drawn


class Draws:
    """Where they draw at random they get what this project drew, in the order in which they ask."""

    def __init__(self) -> None:
        self._answers: Iterator[Answer] = iter(())

    def prepare(self, given: Subnetwork, learner: Learner) -> None:
        reuses = given.record.l_reuse > 1
        self._answers = iter([*(_while_reusing(given, learner) if reuses else _without_reuse(given, learner))])

    def choice(self, pool: Any, size: int, replace: bool) -> Numbers:
        drawn = next(self._answers, None)
        if drawn is None:
            raise DrawsDifferError("they draw once more")
        answer = drawn(np.asarray(pool, np.int64))
        if len(answer) != size:
            raise DrawsDifferError(f"{size} were to be drawn, and {len(answer)} were")
        return answer

    def check_all_asked(self) -> None:
        if next(self._answers, None) is not None:
            raise DrawsDifferError("they draw less often")


def _without_reuse(given: Subnetwork, learner: Learner) -> Iterator[Answer]:
    """From the first layer to the last: which neurons above to leave out, then the connections to those that stay."""
    record = given.record
    for l in range(1, LAST + 1):
        if l < LAST:
            yield _all_but(record.free[l + 1])
        yield _connections(_places(learner, record, l, record.sources(l), record.targets(l)), given.places[l])


def _while_reusing(given: Subnetwork, learner: Learner) -> Iterator[Answer]:
    """For each class from the last layer to the first; free neurons with the first class."""
    record, nobody = given.record, torch.empty(0, dtype=torch.int64)
    for number, allocated in enumerate(record.classes):
        for l in range(LAST, 0, -1):
            if number == 0 and l > 1:
                yield _all_but(record.free[l]) if l == LAST else _exactly(record.free.get(l, nobody))
            if l < record.l_reuse:
                yield _exactly(nobody)
                continue
            each = len(given.places[l]) // len(record.classes)
            places = _places(learner, record, l, allocated.sources[l], allocated.targets[l])
            places.view(-1)[given.places[l][: number * each]] = False  # what the classes before drew
            yield _connections(places, given.places[l][number * each : (number + 1) * each])


def _places(learner: Learner, record: Allocation, l: int, sources: Tensor, targets: Tensor) -> Tensor:
    """Where a task may have connections of W_l: between these, and nobody's before it."""
    owner = learner.ledger.owner(l)[:, :, 0]
    between = torch.zeros_like(owner, dtype=torch.bool)
    between[targets[:, None], sources[None, :]] = True
    return between & ((owner == 0) | (owner == record.task))


def _all_but(neurons: Tensor) -> Answer:
    return lambda pool: pool[~np.isin(pool, neurons.numpy())]


def _exactly(neurons: Tensor) -> Answer:
    def answer(pool: Numbers) -> Numbers:
        if not np.isin(neurons.numpy(), pool).all():
            raise DrawsDifferError("a free neuron is not free there")
        return neurons.numpy()

    return answer


def _connections(places: Tensor, drawn: Tensor) -> Answer:
    """They number the places row by row."""

    def answer(pool: Numbers) -> Numbers:
        numbered = torch.nonzero(places.reshape(-1)).flatten().numpy()
        if len(pool) != len(numbered):
            raise DrawsDifferError(f"connections are drawn from {len(pool)} places there, from {len(numbered)} here")
        return np.searchsorted(numbered, drawn.numpy())

    return answer


class TheirNetwork(nn.Module):
    """The network with the names and methods by which their class asks for its parts."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d, e = WIDTHS
        self.num_classes, self.l_reuse = TASKS * CLASSES, L_REUSE - 1
        self.conv2_W = self.conv2_H = ((SIDE - 4) // 2 - 2) // 2
        self.conv_1, self.conv_2, self.conv_3 = nn.Conv2d(3, a, 3), nn.Conv2d(a, b, 3), nn.Conv2d(b, c, 3)
        self.dense_1 = nn.Linear(c * self.conv2_H * self.conv2_W, d)
        self.dense_2, self.classifier = nn.Linear(d, e), nn.Linear(e, self.num_classes)
        self.layers_names = [name for name, parameter in self.named_parameters() if self.take_layer(name, parameter)]
        self.layers_names.append("classifier.bias")
        self.noParams: list[int] = []

    def take_layer(self, name: str, parameter: Tensor) -> bool:
        return parameter.dim() > 1

    def last_layer(self, name: str) -> bool:
        return name in self.layers_names[-2:]

    def flatten_layer(self, name: str) -> bool:
        return name == "dense_1.weight"

    def activations(self, x: Tensor) -> list[Tensor]:
        """Of layers 2..L-1, after ReLU and before pooling, and the logits."""
        conv_1 = self.conv_1(x).relu()
        conv_2 = self.conv_2(conv_1).relu()
        conv_3 = self.conv_3(nn.functional.max_pool2d(conv_2, 2)).relu()
        dense_1 = self.dense_1(nn.functional.max_pool2d(conv_3, 2).flatten(1)).relu()
        dense_2 = self.dense_2(dense_1).relu()
        return [conv_1, conv_2, conv_3, dense_1, dense_2, self.classifier(dense_2)]

    def forward(self, x: Tensor) -> Tensor:
        return self.activations(x)[-1]


class Theirs:
    """Their class, led through tasks as their main program leads it."""

    def __init__(self, path: Path, learner: Learner):
        self.network, self.draws = TheirNetwork(), Draws()
        self.released = load(path, self.draws)
        named = dict(self.network.named_parameters())
        self.weights = {l: named[name] for l, name in enumerate(self.network.layers_names[:-1], 1)}
        self.biases = {l: named[name.replace("weight", "bias")] for l, name in enumerate(self.network.layers_names[:-1], 1)}
        for l in self.weights:
            self.weights[l].data = learner.network.initial_weights(l).reshape(self.weights[l].shape).clone()
            self.biases[l].data = learner.network.initial_bias(l).clone()
        self.step = torch.optim.SGD(self.network.parameters(), lr=LEARN.lr)
        self.candidates: list[dict[str, Tensor]] = []  # of each class of the newest task

    def begin(self) -> None:
        """Their class allocates the first task's sub-network when it is made."""
        alloc = [3, *(ALLOC[kind] * width // 100 for kind, width in zip(KINDS, WIDTHS, strict=True)), CLASSES]
        fixed = [0, *(FIXED[kind] * count // 100 for kind, count in zip(KINDS, alloc[1:-1], strict=True)), CLASSES]
        densities = [DENSITY[kind] for kind in ("conv", *KINDS)]
        self.network.noParams = [d * below * above // 100 for d, below, above in zip(densities, alloc, alloc[1:], strict=False)]
        candidates, free = (
            [p * count // 100 if i >= L_REUSE - 1 else 0 for i, count in enumerate(alloc[:-1])] for p in (SHARE, 100 - SHARE)
        )
        labels = [list(range(t * CLASSES, (t + 1) * CLASSES)) for t in range(TASKS)]
        self.code: Any = self.released.CL(torch.device("cpu"), fixed, alloc, labels, self.network, [*free, 0], [*candidates, 0])
        self.code.get_candidate_neurons_for_a_class = partial(self.keep_candidates, self.code.get_candidate_neurons_for_a_class)
        self.code.set_init_network_weight()

    def keep_candidates(self, find: Callable[..., None], *arguments: Any) -> None:
        find(*arguments)
        self.candidates.append(self.code.candidate_neurons_per_layer)  # it makes another for the next class

    def name(self, l: int) -> str:
        return self.network.layers_names[l - 1]

    def start(self, learner: Learner, lesson: Lesson, given: Subnetwork, compared: Compared) -> None:
        """Allocate as they do."""
        self.draws.prepare(given, learner)
        self.candidates.clear()
        reuses = lesson.task >= FIRST_REUSE
        with quietly():
            if lesson.task == 1:
                self.begin()
            else:
                self.code.prepare_next_task("mostrelated", reuses, self.mean_activations(lesson) if reuses else None)
        self.draws.check_all_asked()
        self.code.reset_importance()
        self.compare(learner, lesson.task, compared)
        for l in range(2, LAST + 1):
            compared.note_sets("which neurons are fixed", self.code.layers_free_nodes[self.name(l)] == 0, learner.ledger.is_fixed(l))
        for l in range(given.record.l_reuse, LAST + 1):
            places = torch.stack([_places(learner, given.record, l, c.sources[l], c.targets[l]) for c in given.record.classes]).any(0)
            for theirs, ours in ((self.code.selected_nodes, places.any(0)), (self.code.selected_nodes_in, places.any(1))):
                compared.note_neurons("which neurons a task gets, of those with a place left", theirs[self.name(l)], ours)
        for of_class, allocated in zip(self.candidates, given.record.classes if reuses else (), strict=True):
            for l in range(L_REUSE, LAST):
                compared.note_sets("which neurons are candidates", of_class[self.name(l)].nonzero().flatten(), allocated.candidates[l])

    def mean_activations(self, lesson: Lesson) -> list[list[Tensor]]:
        """By layer and class: the mean over the class's images of a neuron's activation, summed over a map's positions."""
        with torch.no_grad():
            layers = self.network.activations(lesson.feed.batch(torch.arange(len(lesson.feed)), Moment(0, lesson.task))[0])[:-1]
        labels = lesson.feed.labels
        return [
            [layer[labels == c].flatten(2).sum(2).mean(0) if layer.dim() == 4 else layer[labels == c].mean(0) for c in lesson.classes]
            for layer in layers
        ]

    def learn_epoch(self, lesson: Lesson, moment: Moment) -> None:
        for samples in lesson.feed.order(moment).split(LEARN.batch_size):
            images, labels = lesson.feed.batch(samples, moment)
            self.step.zero_grad()
            self.code.set_old_weight()
            nn.functional.cross_entropy(self.network(images), labels).backward()  # type: ignore[no-untyped-call]
            self.code.apply_mask_on_grad()
            self.step.step()
            self.code.calculate_importance()
            self.code.recover_old_task_weight()
        if moment.epoch < LEARN.epochs - 1:
            self.code.remove()
            self.code.add()

    def compare(self, learner: Learner, task: int, compared: Compared) -> None:
        for l, weight in self.weights.items():
            ledger, name = learner.ledger, self.name(l)
            owned = self.as_mask(ledger.owned_by(l, task) if l == LAST else ledger.owner(l) > 0, l)
            compared.note("weights", (weight.data - learner.network.weight(l).reshape(weight.shape)) * owned)
            compared.note("biases", self.biases[l].data - learner.network.bias(l))
            compared.note_sets("which connections are the task's", self.code.mask[name], self.as_mask(ledger.owned_by(l, task), l))

    def compare_importance(self, learner: Learner, compared: Compared) -> None:
        for l in self.weights:
            importance = self.code.layers_importnace[self.name(l)]
            largest = importance.max() if importance.any() else 1.0  # below l_reuse nothing is learned
            compared.note("importance of neurons, of the largest", (importance - learner.importance.neurons[l - 1]) / largest)

    def answer(self, images: Tensor, learner: Learner) -> Tensor:
        self.code.set_classifer_to_all_learned_tasks()
        with torch.no_grad():
            logits: Tensor = self.network(images)
        return logits[:, : len(learner.seen_classes)]

    def as_mask(self, owned: Tensor, l: int) -> Tensor:
        """Connections as the elements of a weight tensor of theirs."""
        shape = self.weights[l].shape
        blocks = owned[:, :, 0].to(torch.float64)
        return blocks[:, :, None].expand(*blocks.shape, shape.numel() // blocks.numel()).reshape(shape).clone()


if __name__ == "__main__":
    main()
