"""The settings of a model that keeps learning: its network and its training, from the classes and images of the first call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Annotated, Any, get_type_hints

from afaf.bounds import Count, Portion, Positive, Within
from afaf.checked import build
from afaf.errors import ConfigError
from afaf.lifelong.life import Negatives
from afaf.methods import find_method
from afaf.network.zoo import CHAINS, describe, own_norm
from afaf.randomness import check_seed
from afaf.runs.config import Config, RunSettings, StreamSettings, Table, build_config
from afaf.runs.job import settings_tables
from afaf.runs.presets import BATCH_SIZE, STEPS, setting_in, suitable_network, with_presets
from afaf.runs.presets.plus import is_plus
from afaf.runs.setup import Setup, set_up
from afaf.streams.tasks import Augment, Outline

METHOD = "afaf"  # the default
MOST_WEIGHTS = 1 << 28  # of a model, 1 GiB
MOST_TASKS = (1 << 15) - 1  # a ledger numbers tasks in int16
MAX_TASKS = 10  # that a model is made for by default
SAME = {"epochs": ("learn", "epochs"), "batch_size": ("learn", "batch_size"), "lr": ("learn", "lr"), "network": ("network", "name")}
# fields of LifelongSettings that a setting of `afaf run` says, too


@dataclass(frozen=True)
class LifelongSettings:
    """The settings that are fixed when a model is begun."""

    max_tasks: Annotated[int, Within(1, MOST_TASKS)] | None = None  # None: from max_classes, or 10
    max_classes: Annotated[int, Within(1, 1 << 20)] | None = None  # None: output rows are added as classes arrive
    method: str = METHOD
    network: str | None = None  # None: the one that suits the images
    epochs: Count | None = None  # None: enough for 1,500 steps per task, from 20 to 200
    batch_size: Count | None = None
    lr: Positive | None = None
    augment: Augment = "none"
    settings: Any = None  # any other settings: a mapping, or a list of section.key=value
    balance: bool = True  # images of rare classes count more
    negatives: Negatives = "auto"  # none-of-mine images made from a task's own; auto: yes, except for a single task of several classes
    validation: Portion = 0.1  # of each class, held out for the accuracy shown and the temperature
    seed: int = 0


def plan_life(shape: tuple[int, ...], n_classes: int, images: int, settings: LifelongSettings) -> tuple[Outline, Setup]:
    """The tasks a model is made for, and its network; checks the settings before any image is read."""
    outline = expected_outline(shape, n_classes, images, settings)
    _refuse_twice(settings)
    setup = set_up(outline, settings.method, *_tables(outline, settings))
    _refuse_of_runs(setup.config)
    if len(setup.method.task_groups(2)) == 1:
        raise ConfigError(f"method '{settings.method}' learns all classes in one call: it cannot keep learning")
    if setup.spec.dense_params > MOST_WEIGHTS:
        inputs = f"images of {shape[1]} x {shape[2]} pixels" if len(shape) == 3 else f"vectors of {shape[0]:,} features"
        advice = "smaller images (--size)" if len(shape) == 3 else "fewer features"
        raise ConfigError(
            f"{inputs} make network '{setup.spec.name}' {setup.spec.dense_params:,} weights large, and it may have {MOST_WEIGHTS:,}: "
            f"use {advice}, or a smaller network"
        )
    return outline, setup


def expected_outline(shape: tuple[int, ...], n_classes: int, images: int, settings: LifelongSettings) -> Outline:
    """An outline of the expected tasks, all like the first."""
    max_tasks = _tasks_expected(settings, n_classes)
    names = tuple(tuple(f"{task}-{k}" for k in range(n_classes)) for task in range(max_tasks))
    return Outline("lifelong", shape, names, (images,) * max_tasks)


def _tables(outline: Outline, settings: LifelongSettings) -> list[Table]:
    return [lifelong_table(outline, settings), *settings_tables(None, settings.settings)]


def config_of(outline: Outline, settings: LifelongSettings) -> Config:
    """The configuration from these settings, whether or not such a model can be made."""
    kind = find_method(settings.method)
    return build_config(kind.Options, *with_presets(outline, kind, _tables(outline, settings)))


def epochs_of_every_task(outline: Outline, settings: LifelongSettings, config: Config) -> int | None:
    """Epochs of every task; None: chosen for each task from its number of images."""
    by_images = settings.epochs is None and config.learn.epochs == lifelong_table(outline, settings)["learn"]["epochs"]
    return None if by_images else config.learn.epochs


def spelled_out(outline: Outline, settings: LifelongSettings, config: Config) -> LifelongSettings:
    """The complete settings of a configuration; `settings` holds those that no other field covers."""
    found = replace(
        settings,
        max_tasks=len(outline),
        network=config.network.name,
        batch_size=config.learn.batch_size,
        lr=config.learn.lr,
        settings=None,
    )
    beyond = differences(config_of(outline, found).to_dict(), config.to_dict())
    beyond.pop("learn.epochs", None)  # covered by `epochs`
    return replace(found, settings=beyond or None)


def _refuse_twice(settings: LifelongSettings) -> None:
    """Refuse a setting that has two different values."""
    tables = settings_tables(None, settings.settings)
    for name, (section, key) in SAME.items():
        value, other = getattr(settings, name), setting_in(tables, section, key)
        if value is not None and other is not None and value != other:
            raise ConfigError(f"{name} is {value}, and {section}.{key} of the settings {other}: leave one out")


def _refuse_of_runs(config: Config) -> None:
    """Refuse settings of a run over a stream, which would have no effect here."""
    run, default = config.run, RunSettings()
    given = [f"stream.{name}" for name in differences(asdict(StreamSettings()), asdict(config.stream))]
    given += [f"run.{name}" for name in ("images", "validation", "evaluate_on") if getattr(run, name) != getattr(default, name)]
    given += ["network.weights"] if config.network.weights != "seed" else []
    if given:
        advice = "; `validation` is the share of its own that is held out (--validation, validation_fraction)"
        raise ConfigError(
            f"{', '.join(given)}: of runs over a stream; a model that learns call by call has no use for it"
            f"{advice if 'run.validation' in given else ''}: leave it out"
        )


def _tasks_expected(settings: LifelongSettings, n_classes: int) -> int:
    """How many tasks a model is made for."""
    check_seed(settings.seed)
    hints = get_type_hints(LifelongSettings, include_extras=True)
    for name in hints.keys() - {"settings", "seed"}:
        build(hints[name], getattr(settings, name), name)
    if settings.max_classes is not None and settings.max_classes < n_classes:
        raise ConfigError(f"max_classes = {settings.max_classes}, but the first task alone brings {n_classes}: raise it")
    if settings.max_tasks is not None:
        return int(settings.max_tasks)
    return MAX_TASKS if settings.max_classes is None else ceil(settings.max_classes / n_classes)


def lifelong_table(outline: Outline, settings: LifelongSettings) -> Table:
    """Settings for this many tasks: each gets a share of the last hidden layer, and other sizes are as large as all tasks allow.

    A task's neurons in the last hidden layer are always new, so the pairs into them are, too; layers below l_reuse belong to the first
    tasks. So only the layers between have to last for all tasks.
    """
    n_tasks = len(outline)
    name = settings.network or suitable_network(outline)
    batch_size = settings.batch_size or BATCH_SIZE
    epochs = settings.epochs or suitable_epochs(outline.train_counts[0], batch_size)
    how: Table = {"learn": {"epochs": epochs, "batch_size": batch_size, "lr": settings.lr or 0.1}}
    if is_plus(find_method(settings.method)):
        return {"network": {"name": name}, **how}
    how["run"] = {"precision": "fp32"}
    if settings.method != METHOD or name not in CHAINS or setting_in(settings_tables(None, settings.settings), "method", "strict"):
        return {"network": {"name": name, "norm": own_norm(name)}, **how}  # sizes come from the network, as in any run
    share = 10000 // n_tasks / 100  # percent, rounded down so that all tasks fit
    top = describe(name, outline.input_shape, outline.n_classes).E - 1  # W_top leads into the last hidden layer
    l_reuse = {"mlp": 2, "small-cnn": 3, "alexnet": 4}.get(name, max(2, top))
    middle = min(30.0, 12000 // n_tasks / 100)
    density = {f"W_{l}": middle if l_reuse <= l < top else 30.0 for l in range(1, top + 1)} | {f"W_{top + 1}": 70.0}
    if name not in ("mlp", "tiny-mlp"):
        density["W_1"] = max(30.0, min(50.0, 100 // outline.input_shape[0]))  # maps of few channels must not be left without input
    reserve = min(20.0, share)
    return {
        "network": {"name": name},
        "sparse": {
            "alloc": {"conv": 50.0, "fc": 50.0, "output": share},
            "density": density,
            "fixed": {"conv": reserve, "fc": reserve, "output": 100.0},
        },
        "method": {"l_reuse": l_reuse, "first_reuse": 3},
        **how,
    }


def differences(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> Table:
    """The single settings, such as {"sparse.drop": 10}, that turn one table into the other."""
    found: Table = {}
    for name, value in above.items():
        other = below.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if other.keys() - value.keys():  # tables are merged, so a replaced one must be cleared first
                found[where + name], other = None, {}
            found |= differences(other, value, f"{where}{name}.")
        elif name not in below or value != other:
            found[where + name] = value
    return found


def suitable_epochs(images: int, batch_size: int) -> int:
    """Enough epochs for a task to get the steps that a sparse network needs."""
    return min(200, max(20, -(-STEPS // max(1, images // batch_size))))
