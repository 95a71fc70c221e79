"""Pictures of a run with matplotlib: the owner of each part of the network, and the R matrix."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from afaf.files import write_whole
from afaf.files.marks import figure_metadata
from afaf.network.ledger import Ledger
from afaf.network.spec import NetworkSpec
from afaf.report.ledger_facts import LayerUse, first_users, neuron_layers
from afaf.runs.folder import read_results
from afaf.runs.results import Results
from afaf.storage.model_file import Model
from afaf.text import printable_name

# Colours of tasks 1, 2, ...: adjacent ones differ for people with the common colour-vision deficiencies, too.
TASK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7b4fb5", "#5f9e3e", "#b03a5b")
UNOWNED, FREE_USED = "#ffffff", "#c9c9c9"
MISSING = re.compile(r"Glyph \d+ .*missing from")  # matplotlib's warning, for each glyph each time it is drawn
LARGEST_PANEL = 256  # pixels; a larger layer is averaged down, so that its density stays true


def task_colour(task: int) -> str:
    return TASK_COLOURS[(task - 1) % len(TASK_COLOURS)]


def draw_run(folder: Path) -> None:
    """Write ledger.png and r-matrix.png into a finished run's folder, unless they exist."""
    with warn_once_of_missing_letters():
        if not (folder / "ledger.png").exists():
            write_whole(folder / "ledger.png", partial(save, ledger_figure(Model.load(folder / "model.safetensors"))))
        if not (folder / "r-matrix.png").exists():
            write_whole(folder / "r-matrix.png", partial(save, r_matrix_figure(read_results(folder))))


def ledger_figure(model: Model) -> Figure:
    """Connections by owning task, neurons sorted by the task that fixed or first used them; below, each layer's neurons counted."""
    ledger, spec = model.learner.ledger, model.learner.network.spec
    tasks = sorted(model.learner.classes_of)
    orders = {s: _by_first_task(spec, ledger, s) for s in spec.groups}
    width = 2.3 * spec.E + 1.2
    figure = Figure(figsize=(width, 5.6), dpi=150)
    grid = figure.add_gridspec(
        2, spec.E, height_ratios=[2.1, 1.5], hspace=0.42, wspace=0.28, left=0.75 / width, right=1 - 0.95 / width, top=0.86, bottom=0.13
    )
    for l, edge in enumerate(spec.edges, 1):
        owner = ledger.owner(l).amax(2).clamp(min=0).cpu().numpy()
        axes = figure.add_subplot(grid[0, l - 1])
        placed = owner[orders[edge.target_group]]
        placed = placed if edge.diagonal else placed[:, orders[edge.source_group]]
        axes.imshow(_owner_image(placed, tasks), aspect="auto", interpolation="nearest")
        owned = 100 * ledger.owned_weights(l, edge.block) / edge.weights
        between = as_written(" → ".join(spec.ends(l)))
        axes.set_title(f"$W_{{{l}}}$: {between}\n{owned:.1f} % owned", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(_neurons(edge.inputs), fontsize=7)
        axes.set_ylabel(_neurons(edge.outputs), fontsize=7)
    _count_neurons(figure.add_subplot(grid[1, :]), neuron_layers(model))
    handles = [
        Patch(color=task_colour(t), label=as_written(f"task {t}: {', '.join(model.class_names[t - 1])}"))
        for t in tasks
        if t <= len(model.class_names)
    ]
    if len(tasks) == 1 and len(model.class_names) > 1:
        handles = [Patch(color=task_colour(tasks[0]), label="all tasks together")]
    handles += [
        Patch(facecolor=FREE_USED, label="used, still free"),
        Patch(facecolor=UNOWNED, edgecolor="#888888", label="unused"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=min(4, len(handles)), fontsize=7, frameon=False)
    figure.suptitle(as_written(f"Who owns what after the last task: {model.stream}, {model.method}"), fontsize=11)
    return figure


def r_matrix_figure(results: Results) -> Figure:
    """Accuracy on each task after each task, class-IL beside task-IL."""
    n_tasks = len(results.R)
    side = 1.6 + 0.52 * n_tasks
    figure = Figure(figsize=(2 * side + 0.8, side + 0.9), dpi=150)
    for place, (name, R, mean) in enumerate([("class-IL", results.R, results.acc), ("task-IL", results.R_task_il, results.acc_task_il)]):
        axes = figure.add_subplot(1, 2, place + 1)
        missing = [[None] * (n_tasks - len(row)) for row in R]
        values = np.array([[*row, *rest] for row, rest in zip(R, missing, strict=True)], dtype=np.float64)  # None is NaN
        axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
        for (j, i), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(i, j, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if value < 60 else "black")
        axes.set_xticks(range(n_tasks), [str(i + 1) for i in range(n_tasks)])
        axes.set_yticks(range(n_tasks), [str(i + 1) for i in range(n_tasks)])
        axes.set_xlabel("accuracy on task (%)")
        axes.set_ylabel("after learning task")
        axes.set_title(name if mean is None else f"{name}: ACC {mean:.1f} %", fontsize=10)
    figure.suptitle(as_written(f"{results.stream}, {results.method}, seed {results.seed}"), fontsize=11)
    width, height = figure.get_size_inches()  # margins in inches: tight_layout would draw everything twice
    figure.subplots_adjust(left=0.65 / width, right=1 - 0.1 / width, bottom=0.55 / height, top=1 - 0.7 / height, wspace=0.7 / side)
    return figure


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format=path.suffix.lstrip(".") or "png", metadata=figure_metadata(path.suffix or ".png"))


def _neurons(count: int) -> str:
    return f"{count} neuron" if count == 1 else f"{count} neurons"


def _by_first_task(spec: NetworkSpec, ledger: Ledger, l: int) -> NDArray[np.int64]:
    """Neurons of layer l, those fixed or first used by early tasks first; the input and the classes keep their order."""
    if l in (1, spec.L):
        return np.arange(len(ledger.fixed(l)))
    fixed = ledger.fixed(l).cpu().numpy()
    return np.lexsort((fixed == 0, np.where(fixed > 0, fixed, first_users(spec, ledger, l))))


def _owner_image(owner: NDArray[np.int16], tasks: list[int]) -> NDArray[np.float64]:
    palette = np.array([colors.to_rgb(UNOWNED)] + [colors.to_rgb(task_colour(t)) for t in range(1, max(tasks, default=1) + 1)])
    image = palette[owner]
    for axis in (0, 1):
        size = image.shape[axis]
        if size > LARGEST_PANEL:
            cuts = np.linspace(0, size, LARGEST_PANEL + 1).astype(int)
            image = np.add.reduceat(image, cuts[:-1], axis) / np.diff(cuts).reshape([-1 if a == axis else 1 for a in range(3)])
    return image


def _count_neurons(axes: Axes, layers: Sequence[LayerUse]) -> None:
    """A bar for each hidden layer: neurons fixed by each task, used but free, unused."""
    for row, layer in enumerate(layers):
        left = 0.0
        for colour, count in [*((task_colour(t), n) for t, n in layer.fixed.items()), (FREE_USED, layer.used)]:
            axes.barh(row, 100 * count / layer.total, left=left, color=colour, height=0.72)
            left += 100 * count / layer.total
        axes.barh(row, 100 - left, left=left, color=UNOWNED, edgecolor="#888888", linewidth=0.5, height=0.72)
        axes.text(101, row, f"{sum(layer.fixed.values())} of {layer.total} fixed", va="center", fontsize=7)
    axes.set_yticks(range(len(layers)), [as_written(layer.name) for layer in layers], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 20), [f"{p} %" for p in range(0, 101, 20)], fontsize=7)
    axes.set_title("neurons fixed by each task", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


class MissingLetters(UserWarning):
    """Warns that a figure shows boxes instead of letters."""


def as_written(words: str) -> str:
    """Escape dollar signs, which matplotlib would take for math mode."""
    return printable_name(words).replace("$", r"\$")


@contextlib.contextmanager
def warn_once_of_missing_letters() -> Iterator[None]:
    """Replace matplotlib's warnings about missing glyphs by one; pass on all others."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        if MISSING.match(str(warning.message)):
            _warn_of_missing_letters()
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@cache
def _warn_of_missing_letters() -> None:
    """Warn once per process: the figures of all seeds lack the same glyphs."""
    warnings.warn(
        "the font of the figures lacks letters of some names and draws boxes instead; the page of afaf report shows them",
        MissingLetters,
        stacklevel=4,
    )
