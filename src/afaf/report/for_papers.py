"""The figures of a run or of results as SVG and PDF, for a paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from afaf.errors import RunError
from afaf.files import make_folders
from afaf.report import svg
from afaf.report.figures import save_ledger_picture, save_r_matrix, task_colour
from afaf.report.lettering import as_written, missing_letters_told_once
from afaf.report.measured import Measured, Shape, mean_matrix
from afaf.report.page import runs_in
from afaf.report.results_page import average_over_time, colour_of, presets_by_stream
from afaf.report.run_page import Runs
from afaf.runs.folder import write_whole
from afaf.sweeps.store import Store

SUFFIXES = (".svg", ".pdf")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "afaf",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DATE = {".svg": "Date", ".pdf": "CreationDate"}  # left out: the same results make the same file
NOT_IN_NAMES = re.compile(r"[^\w.-]")
OTHER_PLACE = "choose another place with --figures"


def write_figures(source: Path, folder: Path) -> list[Path]:
    """Every figure there are data for."""
    found = runs_in(source)
    return figures_of_runs(Runs(found), folder) if found else figures_of_results(source, folder)


def empty_figure(width: float, height: float) -> Figure:
    """A figure in inches, drawn without a screen and without pyplot's global state."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save_figure(made: Figure, path: Path) -> Path:
    metadata = {DATE[path.suffix]: None} if path.suffix in DATE else None
    write_whole(path, lambda place: made.savefig(place, metadata=metadata))
    return path


def figures_of_results(source: Path, folder: Path) -> list[Path]:
    """For each stream the methods with their presets: ACC of every seed, and the mean accuracy over time."""
    measured = Measured(Store(source).read().values())
    drawings: dict[str, Callable[[Path], Any]] = {}
    for stream, shapes in presets_by_stream(measured).items():
        drawings["accuracy-" + NOT_IN_NAMES.sub("-", stream)] = accuracies(measured, stream, shapes).savefig
    if not drawings:
        raise RunError(f"no figures were written: {source} holds no finished run of a preset; afaf report shows the variants")
    return _write(drawings, folder)


def figures_of_runs(runs: Runs, folder: Path) -> list[Path]:
    """Those of a run, or of several that differ in their seed."""
    drawings: dict[str, Callable[[Path], Any]] = {
        "r-matrix": lambda path: save_r_matrix(runs.first, path),
        "ledger": lambda path: save_ledger_picture(runs.model, path),
        "over-time": lambda path: over_time(runs).savefig(path),
        "confusion": lambda path: confusion(runs).savefig(path),
        "curves": lambda path: curves(runs).savefig(path),
    }
    return _write(drawings, folder)


def _write(drawings: Mapping[str, Callable[[Path], Any]], folder: Path) -> list[Path]:
    make_folders(folder, OTHER_PLACE)
    written = []
    with matplotlib.rc_context(STYLE), missing_letters_told_once():
        for name, draw in drawings.items():
            for suffix in SUFFIXES:
                write_whole(folder / f"{name}{suffix}", draw)
                written.append(folder / f"{name}{suffix}")
    return written


def accuracies(measured: Measured, stream: str, shapes: list[Shape]) -> Figure:
    """ACC of every seed with its mean, and the mean accuracy on the tasks so far."""
    made = empty_figure(9, 1.2 + 0.3 * len(shapes))
    left, right = made.subplots(1, 2)
    for place, shape in enumerate(shapes):
        values, colour = list(measured.values(shape, "acc").values()), colour_of(shape.method)
        left.plot(values, [place] * len(values), "|", color=colour, alpha=0.6, markersize=8)
        if values:
            left.plot(float(np.mean(values)), place, "o", color=colour, markersize=4)
        series = average_over_time(measured, shape, shape.method, colour)
        known = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        if known:
            right.plot(
                *zip(*known, strict=True), marker="o", markersize=3, color=colour, label=as_written(f"{shape.method} (n = {len(values)})")
            )
    left.set_yticks(range(len(shapes)), [as_written(shape.method) for shape in shapes])
    left.invert_yaxis()
    left.set_title(as_written(f"{stream}: ACC of every seed (%)"))
    right.set_title("mean accuracy on the tasks so far (%)")
    right.set_xlabel("after task")
    right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right.legend(frameon=False, fontsize=7)
    return made


def over_time(runs: Runs) -> Figure:
    """Accuracy on each task after each task; the mean over seeds."""
    made = empty_figure(8, 3)
    for axes, title, name in zip(made.subplots(1, 2, sharey=True), ("class-IL", "task-IL"), ("R", "R_task_il"), strict=True):
        R = mean_matrix([getattr(run, name) for run in runs.results])
        for i in range(len(R)):
            known = [(j + 1, value) for j in range(i, len(R)) if (value := R[j][i]) is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker="o", markersize=3.5, color=task_colour(i + 1), label=f"task {i + 1}")
        axes.set_title(title)
        axes.set_xlabel("after task")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    made.axes[0].set_ylabel("accuracy (%)")
    made.axes[1].legend(frameon=False, fontsize=7)
    return made


def confusion(runs: Runs) -> Figure:
    """Shares of answers by true class, all seeds together; tasks outlined."""
    counts = np.sum([run.confusion for run in runs.results], axis=0)
    names = [as_written(name) for task in runs.first.class_names for name in task]
    made = empty_figure(2 + 0.3 * min(len(names), 24), 1.6 + 0.28 * min(len(names), 24))
    axes = made.subplots()
    image = axes.imshow(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), vmin=0, vmax=100, cmap="magma")
    for first, last in svg.boundaries([len(task) for task in runs.first.class_names]):
        axes.add_patch(Rectangle((first - 0.5, first - 0.5), last - first + 1, last - first + 1, fill=False, edgecolor="#ff5a36"))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("answered with")
    axes.set_ylabel("true class")
    made.colorbar(image, ax=axes, label="%", shrink=0.8)
    return made


def curves(runs: Runs) -> Figure:
    """Loss and accuracy on training images by epoch; the mean over seeds."""
    made = empty_figure(8, 2.8)
    for axes, name in zip(made.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for task in sorted({key[0] for log in runs.logs for key in log}):
            keys = sorted({key for log in runs.logs for key in log if key[0] == task})
            means = [float(np.mean([log[key][name] for log in runs.logs if key in log])) for key in keys]
            alone = "o" if len(keys) == 1 else None  # a line of one point is none
            axes.plot(range(1, len(keys) + 1), means, marker=alone, color=task_colour(task), label=f"task {task}")
        axes.set_title(name if name == "loss" else "accuracy on training images (%)")
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    made.axes[0].legend(frameon=False, fontsize=7)
    return made
