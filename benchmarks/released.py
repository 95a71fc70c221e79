"""Step by step beside the authors' released code: `python -m benchmarks.released CHECKOUT [--stream mix --data DIR]`.

CHECKOUT is a folder with their CL.py and, for Mix, their models_CNN.py (repository GhadaSokar/AFAF), which are read there and not part of
this project. Tasks are learned by both on the same images in the same order, in double precision, with biases and gradients as in the
released code (`method.biases=unfixed method.block_gradient=false`). Their code gets the initial network, and where it draws, the draws of
this project: which free neurons a task takes, which of the places where it may have connections, and what dropout drops. Everything else
each side finds out for itself: candidates, which places these are, steps, importance, what is dropped and grown, which neurons become
fixed, what comes out for a test image. Where importances are equal numpy decides in their code, in no documented order;
there it is given the rule of this project, the lowest index first. Two cases:

- small, the default: four tasks of two classes, the last two reusing, on a small network without dropout that is written anew below.
- mix: the eight tasks of Mix, the last four reusing, on their own class CNN, at full size, with dropout and with the settings of the
  preset. So that it ends on a CPU within about ten minutes there are 24 training images of each class instead of all, 4 epochs instead of
  40, and 10 test images of each class: steps enough to compare, too few to learn a task by. Grey images are tinted a little, see `tinted`.

Their main program is written anew, and not compared. It differs in what candidates are measured on: augmented images there, un-augmented
ones here; and it takes an answer for right among all classes, those not yet seen included. Images are cropped and flipped by this project
for both. Batch norm is not compared. Nor does it hold for any settings: they take for a step how far a weight moved after rounding, 0
where it is lost in it, this project takes lr x gradient. In the small case with lr 0.3, when gradients vanish or explode, connections of an
importance near 0 (1e-35) are dropped in another order with 2 of 12 seeds, and a third diverges.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
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

from afaf.errors import AfafError
from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import TaskContext
from afaf.network.forward import Training
from afaf.network.ledger import Allocation
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.runs.setup import set_up
from afaf.streams.benchmarks import open_stream, outline_of
from afaf.streams.tasks import Preparation, Split, Stream, Task
from afaf.subnets.allocate import Request, Subnetwork
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.report import EpochReport
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from afaf.training.task_data import RngScope, TaskData
from benchmarks.provenance import write_results

TASKS, CLASSES, SIDE, PER_CLASS = 4, 2, 16, 70  # of the small stream
IMAGES, TESTED, EPOCHS = 24, 10, 4  # of Mix: training and test images of each class
KINDS = ("conv", "conv", "conv", "fc", "output")  # which percentages hold for the hidden layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path, help="a folder with the authors' CL.py, and models_CNN.py for mix")
    parser.add_argument("--stream", choices=("small", "mix"), default="small")
    parser.add_argument("--data", type=Path, help="the folder of the datasets of mix")
    parser.add_argument("--seeds", type=int, help="default: 12, with mix 1")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/released.json"), help="rows of the other case stay there")
    arguments = parser.parse_args()
    case = small_case() if arguments.stream == "small" else mix_case(arguments.data)
    for code in (arguments.checkout / name for name in case.files):
        if not code.is_file():
            sys.exit(f"{code}: no such file: name the folder that holds the authors' released code (GhadaSokar/AFAF)")
    try:
        rows = [row for seed in range(arguments.seeds or case.seeds) for row in SideStream(case, arguments.checkout, seed).compare()]
    except DrawsDifferError as error:
        sys.exit(f"the two differ: {error}")
    except AfafError as error:
        sys.exit(str(error))
    learned = {row["seed"]: row["learned"] for row in rows}
    Console().print(as_table(rows))
    print(f"Tasks of which more than nine in ten test images were told apart: {sum(learned.values())} of {case.tasks * len(learned)}")
    write_results(arguments.out, [*rows_of_others(arguments.out, case.name), *rows], torch.device("cpu"))
    if any(row["largest"] > row["allowed"] for row in rows):
        sys.exit("the two differ")


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("what is compared", "seeds", "largest difference", "allowed")
    for what in dict.fromkeys(row["what"] for row in rows):
        found = [row for row in rows if row["what"] == what]
        table.add_row(what, str(len(found)), f"{max(row['largest'] for row in found):.1e}", f"{found[0]['allowed']:.0e}")
    return table


def rows_of_others(path: Path, name: str) -> list[dict[str, Any]]:
    """What the file has of other cases; the commit it names is that of the newest."""
    written = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return [row for row in written if row.get("case", name) != name]


# ---- the two cases


@dataclass(frozen=True)
class Case:
    """What both learn, how, and on what network."""

    name: str
    tasks: int
    stream: Callable[[int], Stream]  # by the seed
    spec: NetworkSpec
    method: Watched
    files: tuple[str, ...]  # of theirs
    network: Callable[[Case, Path, Counts], Any]  # as their class asks for its parts, made with the help of those files
    seeds: int

    @property
    def options(self) -> AFAFOptions:
        return self.method.options

    @property
    def learn(self) -> LearnSettings:
        return self.method.settings.learn

    @property
    def sparse(self) -> SparseSettings:
        return self.method.settings.sparse


class Watched(AFAF):
    """AFAF, of which can be seen what it drew for the newest task."""

    newest: Subnetwork

    def allocate(self, learner: Learner, context: TaskContext, request: Request) -> Subnetwork:
        self.newest = super().allocate(learner, context, request)
        return self.newest


def small_case() -> Case:
    sparse = SparseSettings(
        alloc={"conv": 70, "fc": 40, "output": 20},
        density={"conv": 30, "fc": 30, "output": 80},
        fixed={"conv": 10, "fc": 30, "output": 100},
    )
    method = Watched(
        AFAFOptions(first_reuse=3, l_reuse=4, biases="unfixed", block_gradient=False),
        Settings(LearnSettings(epochs=12, batch_size=16, lr=0.1), sparse),  # so that most of the tasks are learned
    )
    hidden = (
        Layer("conv", 16),
        Layer("conv", 20, ("relu", "pool")),
        Layer("conv", 24, ("relu", "pool")),
        Layer("dense", 60),
        Layer("dense", 80),
    )
    spec = NetworkSpec("small", (3, SIDE, SIDE), hidden, TASKS * CLASSES, 0.0)
    method.check(spec, small_stream(0).outline)
    return Case("small", TASKS, small_stream, spec, method, ("CL.py",), SmallNetwork, seeds=12)


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


def mix_case(data: Path | None) -> Case:
    outline = outline_of("mix")
    fewer = {"learn": {"epochs": EPOCHS}, "method": {"biases": "unfixed", "block_gradient": False}}
    setup = set_up(outline, Watched, fewer)
    assert isinstance(setup.method, Watched)
    files = ("CL.py", "models_CNN.py")
    few = partial(some_of_mix, data)
    return Case("mix", len(outline), few, setup.spec, setup.method, files, released_network, seeds=1)


def some_of_mix(data: Path | None, seed: int) -> Stream:
    """The same images with each seed."""
    whole = open_stream("mix", data=data)
    few = zip(whole.with_at_most(IMAGES), whole.with_at_most(TESTED), strict=True)
    return Stream("mix", [replace(task, test=asked.test, preparation=tinted(task.preparation)) for task, asked in few])


def tinted(preparation: Preparation) -> Preparation:
    """Grey images with three channels that differ a little.

    Connections from equal channels to one neuron would have the same importance but for rounding, and which is dropped would hang on that.
    """
    if preparation.channels is None:
        return preparation
    (mean,), (std,) = preparation.mean, preparation.std
    return replace(preparation, mean=(mean,) * 3, std=(std, 1.01 * std, 1.02 * std))


# ---- one run of both


class SideStream:
    """This project's learner, and their class that does after it what it did."""

    def __init__(self, case: Case, checkout: Path, seed: int):
        self.case, self.seed, self.compared = case, seed, Compared()
        self.stream = case.stream(seed)
        self.learner = Learner.fresh(Network(case.spec, seed, dtype=torch.float64), "connection")
        with double_precision():
            self.theirs = Theirs(case, checkout, self.stream, self.learner)

    def compare(self) -> list[dict[str, Any]]:
        """Learn the stream, and compare every number: the largest differences."""
        learned = 0
        with double_precision():
            for task in self.stream:
                self.learn(task)
                learned += self.judge(task)
        about = {"case": self.case.name, "seed": self.seed, "learned": learned}
        return [
            {**about, "what": what, "largest": largest, "allowed": self.compared.allowed(what)}
            for what, largest in self.compared.largest.items()
        ]

    def learn(self, task: Task) -> None:
        learner, method, theirs = self.learner, self.case.method, self.theirs
        context = TaskContext(task.number, task.classes, TaskData([(task.train, task.preparation)], dtype=torch.float64))
        learner.begin(context.task, context.classes)
        method.start(learner, context, 0)
        theirs.start(learner, context, method.newest, self.compared)

        def after_epoch(report: EpochReport) -> None:
            theirs.learn_epoch(context, RngScope(learner.seed, context.task, 0, report.epoch))
            theirs.compare(learner, context.task, self.compared)
            theirs.compare_importance(learner, self.compared)

        EagerEngine().learn(learner, method.plan(learner, context, 0), context.data, after_epoch)
        method.finish(learner, context)
        learner.end(context.task)

    def judge(self, newest: Task) -> bool:
        """Compare the logits of all tasks' test images so far; whether the newest task was learned: nine in ten of its own told apart."""
        seen = len(self.learner.seen_classes)
        self.theirs.code.set_classifer_to_all_learned_tasks()
        for task in self.stream[: newest.number]:
            data = TaskData([(task.test, task.preparation)], dtype=torch.float64)
            images, labels = data.batch(torch.arange(len(data)))
            answer = self.theirs.evaluate(images)[0][:, :seen]
            with torch.no_grad():
                self.compared.note("logits of test images, classes seen so far", answer - self.learner.network(images)[:, :seen])
        right = answer[:, list(newest.classes)].argmax(1) == labels - newest.classes[0]
        return bool(right.to(torch.float64).mean() > 0.9)


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


# ---- what they draw


class DrawsDifferError(Exception):
    """What they draw from is not what this project drew from."""


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
    record, last = given.record, learner.network.spec.L - 1
    for l in range(1, last + 1):
        if l < last:
            yield _all_but(record.free[l + 1])
        yield _connections(_places(learner, record, l, record.sources(l), record.targets(l)), given.places[l])


def _while_reusing(given: Subnetwork, learner: Learner) -> Iterator[Answer]:
    """For each class from the last layer to the first; free neurons with the first class."""
    record, last, nobody = given.record, learner.network.spec.L - 1, torch.empty(0, dtype=torch.int64)
    for number, allocated in enumerate(record.classes):
        for l in range(last, 0, -1):
            if number == 0 and l > 1:
                yield _all_but(record.free[l]) if l == last else _exactly(record.free.get(l, nobody))
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


class Dropout:
    """Where they drop out they get what this project draws, layer by layer in the order in which they ask."""

    def __init__(self, spec: NetworkSpec, network: nn.Module):
        self.rate = spec.dropout
        self.layers = [l + 1 for l in range(1, spec.L) if any(operation.random for operation in spec.layer(l + 1).ops)]
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                if module.p != self.rate:
                    raise DrawsDifferError(f"the rate of dropout is {module.p} there, {self.rate} here")
                module.forward = partial(self._drop, module)  # type: ignore[method-assign]

    @contextlib.contextmanager
    def of(self, moment: RngScope, samples: Tensor) -> Iterator[None]:
        """For one forward pass in training, of these images at this moment."""
        keys = {layer: moment.key("dropout", layer) for layer in self.layers}
        self._mode, self._asked = Training(keys, samples.to(torch.int32)), iter(self.layers)
        yield
        if next(self._asked, None) is not None:
            raise DrawsDifferError("they drop out less often")

    def _drop(self, module: nn.Dropout, h: Tensor) -> Tensor:
        if module.training:
            layer = next(self._asked, None)
            if layer is None:
                raise DrawsDifferError("they drop out once more")
            h = h * self._mode.dropout_factors(layer, self.rate, h)
        return h.contiguous()  # the next thing they do with maps needs them one after the other


# ---- their side


def load(path: Path, name: str) -> ModuleType:
    """Their code, with the class that it is read for."""
    spec = importlib.util.spec_from_file_location("released", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file is, it is not ours
        sys.exit(f"{path}: cannot be read as Python ({type(error).__name__}: {error}): is it the authors' {path.name}?")
    if not hasattr(module, name):
        sys.exit(f"{path}: has no class {name}: is it the authors' {path.name}?")
    return module


@dataclass(frozen=True)
class Counts:
    """How large a task's sub-network is, as their main program says it: by layer, from the input to the classes."""

    alloc: list[int]
    fixed: list[int]
    free: list[int]  # in tasks that reuse, beside
    candidates: list[int]

    @classmethod
    def of(cls, case: Case, classes: int) -> Counts:
        sparse, sizes = case.sparse, [layer.size for layer in case.spec.layers]
        alloc = [sizes[0], *(percent(sparse.alloc[kind], size) for kind, size in zip(KINDS, sizes[1:-1], strict=True)), classes]
        fixed = [0, *(percent(sparse.fixed[kind], count) for kind, count in zip(KINDS, alloc[1:-1], strict=True)), classes]

        def reused(share: float) -> list[int]:
            return [*(percent(share, count) if l >= case.options.l_reuse else 0 for l, count in enumerate(alloc[:-1], 1)), 0]

        return cls(alloc, fixed, reused(100 - case.options.candidate_share), reused(case.options.candidate_share))


def percent(share: float | dict[str, float], of: int) -> int:
    """So many percent, rounded down."""
    return int(number(share) * of) // 100


def number(share: float | dict[str, float]) -> float:
    """A percentage that holds for all tasks: they know no others."""
    assert not isinstance(share, dict)
    return share


def released_network(case: Case, checkout: Path, counts: Counts) -> Any:
    """Theirs, of models_CNN.py; it counts connections itself."""
    cnn = load(checkout / "models_CNN.py", "CNN").CNN
    densities = [number(case.sparse.density[kind]) / 100 for kind in ("conv", "fc", "output")]
    return cnn(case.spec.layer(1).size, case.spec.n_classes, *densities, counts.alloc, KINDS.count("conv"), case.options.l_reuse - 1, "mix")


class SmallNetwork(nn.Module):
    """A small one, with the names and methods by which their class asks for its parts."""

    def __init__(self, case: Case, checkout: Path, counts: Counts) -> None:
        super().__init__()
        spec = case.spec
        a, b, c, d, e = (layer.size for layer in spec.layers[1:-1])
        self.num_classes, self.l_reuse = spec.n_classes, case.options.l_reuse - 1
        self.conv2_W = self.conv2_H = ((SIDE - 4) // 2 - 2) // 2
        self.conv_1, self.conv_2, self.conv_3 = nn.Conv2d(3, a, 3), nn.Conv2d(a, b, 3), nn.Conv2d(b, c, 3)
        self.dense_1 = nn.Linear(c * self.conv2_H * self.conv2_W, d)
        self.dense_2, self.classifier = nn.Linear(d, e), nn.Linear(e, self.num_classes)
        self.layers_names = [name for name, parameter in self.named_parameters() if self.take_layer(name, parameter)]
        self.layers_names.append("classifier.bias")
        densities, joined = [case.sparse.density[kind] for kind in ("conv", *KINDS)], zip(counts.alloc, counts.alloc[1:], strict=False)
        self.noParams = [percent(density, below * above) for density, (below, above) in zip(densities, joined, strict=True)]

    def take_layer(self, name: str, parameter: Tensor) -> bool:
        return parameter.dim() > 1

    def last_layer(self, name: str) -> bool:
        return name in self.layers_names[-2:]

    def flatten_layer(self, name: str) -> bool:
        return name == "dense_1.weight"

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The logits, and the activations of layers 2..L-1 after ReLU and before pooling, as theirs returns them."""
        conv_1 = self.conv_1(x).relu()
        conv_2 = self.conv_2(conv_1).relu()
        conv_3 = self.conv_3(nn.functional.max_pool2d(conv_2, 2)).relu()
        dense_1 = self.dense_1(nn.functional.max_pool2d(conv_3, 2).flatten(1)).relu()
        dense_2 = self.dense_2(dense_1).relu()
        return self.classifier(dense_2), conv_1, conv_2, conv_3, dense_1, dense_2


def laid_out(images: Tensor) -> Tensor:
    """Images in memory as this project's convolutions have them, so that theirs round alike.

    Where an image is of one colour, all values in a pooling window are equal but for that, and rounding decides from which of them a
    connection that was grown, and still has weight 0, gets its gradient.
    """
    return images.contiguous(memory_format=torch.channels_last)


class Theirs:
    """Their class, led through tasks as their main program leads it."""

    def __init__(self, case: Case, checkout: Path, stream: Stream, learner: Learner):
        self.case, self.draws = case, Draws()
        self.labels = [list(task.classes) for task in stream]
        self.counts = Counts.of(case, len(self.labels[0]))
        self.released = load(checkout / "CL.py", "CL")
        self.released.np = TheirNumpy(self.draws)  # type: ignore[attr-defined]
        with quietly():
            self.network = case.network(case, checkout, self.counts)
        self.dropout = Dropout(case.spec, self.network)
        named = dict(self.network.named_parameters())
        self.weights = {l: named[name] for l, name in enumerate(self.network.layers_names[:-1], 1)}
        self.biases = {l: named[name.replace("weight", "bias")] for l, name in enumerate(self.network.layers_names[:-1], 1)}
        for l in self.weights:
            self.weights[l].data = learner.network.initial_weights(l).reshape(self.weights[l].shape).clone()
            self.biases[l].data = learner.network.initial_bias(l).clone()
        self.step = torch.optim.SGD(self.network.parameters(), lr=case.learn.lr)
        self.candidates: list[dict[str, Tensor]] = []  # of each class of the newest task

    def begin(self) -> None:
        """Their class allocates the first task's sub-network when it is made."""
        sizes = self.counts
        self.code: Any = self.released.CL(
            torch.device("cpu"), sizes.fixed, sizes.alloc, self.labels, self.network, sizes.free, sizes.candidates
        )
        self.code.get_candidate_neurons_for_a_class = partial(self.keep_candidates, self.code.get_candidate_neurons_for_a_class)
        self.code.set_init_network_weight()

    def keep_candidates(self, find: Callable[..., None], *arguments: Any) -> None:
        find(*arguments)
        self.candidates.append(self.code.candidate_neurons_per_layer)  # it makes another for the next class

    def name(self, l: int) -> str:
        name: str = self.network.layers_names[l - 1]
        return name

    def start(self, learner: Learner, context: TaskContext, given: Subnetwork, compared: Compared) -> None:
        """Allocate as they do."""
        self.draws.prepare(given, learner)
        self.candidates.clear()
        reuses = context.task >= self.case.options.first_reuse
        with quietly():
            if context.task == 1:
                self.begin()
            else:
                self.code.prepare_next_task("mostrelated", reuses, self.mean_activations(context) if reuses else None)
        self.draws.check_all_asked()
        self.code.reset_importance()
        self.compare(learner, context.task, compared)
        self.compare_allocation(learner, given.record, compared)

    def mean_activations(self, context: TaskContext) -> list[list[Tensor]]:
        """By layer and class: the mean over the class's images of a neuron's activation, summed over a map's positions."""

        def of_class(c: int) -> list[Tensor]:
            images, _ = context.data.batch(torch.nonzero(context.data.labels == c).flatten())  # no moment: not augmented
            return [h.flatten(2).sum(2).mean(0) if h.dim() == 4 else h.mean(0) for h in self.evaluate(images)[1:]]

        return [list(layer) for layer in zip(*map(of_class, context.classes), strict=True)]

    def learn_epoch(self, context: TaskContext, moment: RngScope) -> None:
        self.network.train()
        for samples in context.data.order(moment).split(self.case.learn.batch_size):
            images, labels = context.data.batch(samples, moment)
            self.step.zero_grad()
            self.code.set_old_weight()
            with self.dropout.of(moment, samples):
                logits = self.network(laid_out(images))[0]
            nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            self.code.apply_mask_on_grad()
            self.step.step()
            self.code.calculate_importance()
            self.code.recover_old_task_weight()
        if moment.epoch < self.case.learn.epochs - 1:
            self.code.remove()
            self.code.add()

    def evaluate(self, images: Tensor) -> tuple[Tensor, ...]:
        """Logits and activations, without dropout."""
        self.network.eval()
        with torch.no_grad():
            found: tuple[Tensor, ...] = self.network(laid_out(images))
        return found

    def compare(self, learner: Learner, task: int, compared: Compared) -> None:
        for l, weight in self.weights.items():
            ledger, name = learner.ledger, self.name(l)
            owned = self.as_mask(ledger.owned_by(l, task) if l == len(self.weights) else ledger.owner(l) > 0, l)
            compared.note("weights", (weight.data - learner.network.weight(l).reshape(weight.shape)) * owned)
            compared.note("biases", self.biases[l].data - learner.network.bias(l))
            compared.note_sets("which connections are the task's", self.code.mask[name], self.as_mask(ledger.owned_by(l, task), l))

    def compare_allocation(self, learner: Learner, record: Allocation, compared: Compared) -> None:
        for l in list(self.weights)[1:]:
            compared.note_sets("which neurons are fixed", self.code.layers_free_nodes[self.name(l)] == 0, learner.ledger.is_fixed(l))
        for l in list(self.weights)[record.l_reuse - 1 :]:
            places = torch.stack([_places(learner, record, l, c.sources[l], c.targets[l]) for c in record.classes]).any(0)
            for theirs, ours in ((self.code.selected_nodes, places.any(0)), (self.code.selected_nodes_in, places.any(1))):
                compared.note_neurons("which neurons a task gets, of those with a place left", theirs[self.name(l)], ours)
        for of_class, allocated in zip(self.candidates, record.classes if record.l_reuse > 1 else (), strict=True):
            for l in range(record.l_reuse, len(self.weights)):
                compared.note_sets("which neurons are candidates", of_class[self.name(l)].nonzero().flatten(), allocated.candidates[l])

    def compare_importance(self, learner: Learner, compared: Compared) -> None:
        for l in self.weights:
            importance = self.code.layers_importnace[self.name(l)]
            largest = importance.max() if importance.any() else 1.0  # below l_reuse nothing is learned
            compared.note("importance of neurons, of the largest", (importance - learner.importance.neurons[l]) / largest)

    def as_mask(self, owned: Tensor, l: int) -> Tensor:
        """Connections as the elements of a weight tensor of theirs."""
        shape = self.weights[l].shape
        blocks = owned[:, :, 0].to(torch.float64)
        return blocks[:, :, None].expand(*blocks.shape, shape.numel() // blocks.numel()).reshape(shape).clone()


if __name__ == "__main__":
    main()
