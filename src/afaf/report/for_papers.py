"""Figures of a run or of results as SVG and PDF, for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from afaf.errors import RunError
from afaf.files import check_output, write_output, write_whole
from afaf.files.marks import format_of
from afaf.report import svg
from afaf.report.figures import as_written, ledger_figure, r_matrix_figure, save, warn_once_of_missing_letters
from afaf.report.measured import Measured, Shape
from afaf.report.page import runs_in
from afaf.report.results_page import (
    average_over_time,
    differ_only_in_seed,
    measured_runs,
    method_colours,
    presets_by_stream,
    without_repeats,
)
from afaf.report.run_page import Runs, accuracy_series, curve_series
from afaf.sweeps.store import Store

SUFFIXES = (".svg", ".pdf")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "afaf",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
NOT_IN_NAMES = re.compile(r"[^\w.-]")
Drawings = dict[str, Callable[[], Figure]]  # by the name of the figure


def write_figures(source: Path | Sequence[Path], folder: Path, *, force: bool = False) -> list[Path]:
    """Write all figures that have data; other existing files are replaced only with `force`."""
    sources = [source] if isinstance(source, Path) else list(source)
    runs, _ = without_repeats(runs_in(sources), named=sources)
    if runs and differ_only_in_seed(runs):
        drawings = drawings_of_runs(runs)
    else:
        drawings = drawings_of_results(measured_runs(runs) if runs else Measured(Store(sources[0]).read().values()), sources[0])
    files = {folder / f"{name}{suffix}": name for name in drawings for suffix in SUFFIXES}
    for path in files:
        check_output(path, format_of(path), force=force)
    with matplotlib.rc_context(STYLE), warn_once_of_missing_letters():
        figures = {name: draw() for name, draw in drawings.items()}
        for path, name in files.items():
            write_output(path, format_of(path), partial(save, figures[name]), force=force)
    return list(files)


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches, without pyplot's global state."""
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> Path:
    write_whole(path, partial(save, figure))
    return path


def drawings_of_results(measured: Measured, source: Path) -> Drawings:
    """Return functions that draw the figures of results: per stream, the presets' ACC of every seed and over time."""
    streams = presets_by_stream(measured)
    if not streams:
        raise RunError(f"no figures were written: {source} holds no finished run of a preset; afaf report shows the variants")
    return {
        f"accuracy-{NOT_IN_NAMES.sub('-', stream)}": partial(accuracies, measured, stream, shapes) for stream, shapes in streams.items()
    }


def drawings_of_runs(folders: Sequence[Path]) -> Drawings:
    """Return functions that draw the figures of a run, or of several that differ in their seed. The first one drawn loads the model."""
    runs = cache(lambda: Runs(folders))
    return {
        "r-matrix": lambda: r_matrix_figure(runs().first),
        "ledger": lambda: ledger_figure(runs().model),
        "over-time": lambda: over_time(runs()),
        "confusion": lambda: confusion(runs()),
        "curves": lambda: curves(runs()),
    }


def accuracies(measured: Measured, stream: str, shapes: list[Shape]) -> Figure:
    """Draw ACC of every seed with its mean, and the mean accuracy on the tasks so far."""
    figure = empty_figure(9, 1.2 + 0.3 * len(shapes))
    left, right = figure.subplots(1, 2)
    colours = method_colours(measured)
    for place, shape in enumerate(shapes):
        values, colour = list(measured.values(shape, "acc").values()), colours[shape.method]
        left.plot(values, [place] * len(values), "|", color=colour, alpha=0.6, markersize=8)
        if values:
            left.plot(float(np.mean(values)), place, "o", color=colour, markersize=4)
        _plot(right, [average_over_time(measured, shape, f"{shape.method} (n = {len(values)})", colour)], "after task")
    left.set_yticks(range(len(shapes)), [as_written(shape.method) for shape in shapes])
    left.invert_yaxis()
    left.set_title(as_written(f"{stream}: ACC of every seed (%)"))
    right.set_title("mean accuracy on the tasks so far (%)")
    right.legend(frameon=False, fontsize=7)
    return figure


def _plot(axes: Axes, series: Sequence[svg.Series], x_label: str, marker: str | None = "o") -> None:
    """Draw lines over whole numbers; a line of one point needs a marker."""
    for one in series:
        points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
        if points:
            shown = "o" if len(points) == 1 else marker
            axes.plot(*zip(*points, strict=True), marker=shown, markersize=3.5, color=one.colour, label=as_written(one.name))
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def over_time(runs: Runs) -> Figure:
    """Draw the accuracy on each task after each task, averaged over seeds."""
    figure = empty_figure(8, 3)
    for axes, title, name in zip(figure.subplots(1, 2, sharey=True), ("class-IL", "task-IL"), ("R", "R_task_il"), strict=True):
        _plot(axes, accuracy_series(runs, name), "after task")
        axes.set_title(title)
    figure.axes[0].set_ylabel("accuracy (%)")
    figure.axes[1].legend(frameon=False, fontsize=7)
    return figure


def confusion(runs: Runs) -> Figure:
    """Draw the confusion matrix over all seeds, tasks outlined."""
    counts = np.sum([run.confusion for run in runs.results], axis=0)
    names = [as_written(name) for task in runs.first.class_names for name in task]
    figure = empty_figure(2 + 0.3 * min(len(names), 24), 1.6 + 0.28 * min(len(names), 24))
    axes = figure.subplots()
    image = axes.imshow(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), vmin=0, vmax=100, cmap="magma")
    for first, last in svg.boundaries([len(task) for task in runs.first.class_names]):
        axes.add_patch(Rectangle((first - 0.5, first - 0.5), last - first + 1, last - first + 1, fill=False, edgecolor="#ff5a36"))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("answered with")
    axes.set_ylabel("true class")
    figure.colorbar(image, ax=axes, label="%", shrink=0.8)
    return figure


def curves(runs: Runs) -> Figure:
    """Draw loss and accuracy on training images by epoch, averaged over seeds."""
    figure = empty_figure(8, 2.8)
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        _plot(axes, curve_series(runs, name), "epoch", marker=None)
        axes.set_title(name if name == "loss" else "accuracy on training images (%)")
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure
