"""The figures of a run or of results as SVG and PDF, for a paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from afaf.errors import RunError
from afaf.files import make_folders
from afaf.report import svg
from afaf.report.figures import save_ledger_picture, save_r_matrix, task_colour
from afaf.report.lettering import as_written, missing_letters_told_once
from afaf.report.measured import Measured, mean_matrix
from afaf.report.page import runs_in
from afaf.report.run_page import Runs
from afaf.report.studies import STYLE, Figures, figure_of
from afaf.runs.folder import write_whole
from afaf.sweeps.store import Store

SUFFIXES = (".svg", ".pdf")
OTHER_PLACE = "choose another place with --figures"


def write_figures(source: Path, folder: Path) -> list[Path]:
    """Every figure there are data for."""
    found = runs_in(source)
    return figures_of_runs(Runs(found), folder) if found else figures_of_results(source, folder)


def figures_of_results(source: Path, folder: Path) -> list[Path]:
    """The paper's, which need runs of its studies."""
    written = Figures(Measured(Store(source).read().values())).draw_all(folder, SUFFIXES, OTHER_PLACE)
    if not written:
        raise RunError(
            f"no figures were written: {source} holds no runs of a figure of the paper; afaf report RUN --figures draws those of a run"
        )
    return written


def figures_of_runs(runs: Runs, folder: Path) -> list[Path]:
    """Those of a run, or of several that differ in their seed."""
    make_folders(folder, OTHER_PLACE)
    drawings: dict[str, Callable[[Path], None]] = {
        "r-matrix": lambda path: save_r_matrix(runs.first, path),
        "ledger": lambda path: save_ledger_picture(runs.model, path),
        "over-time": lambda path: over_time(runs).savefig(path),
        "confusion": lambda path: confusion(runs).savefig(path),
        "curves": lambda path: curves(runs).savefig(path),
    }
    written = []
    with matplotlib.rc_context(STYLE), missing_letters_told_once():
        for name, draw in drawings.items():
            for suffix in SUFFIXES:
                write_whole(folder / f"{name}{suffix}", draw)
                written.append(folder / f"{name}{suffix}")
    return written


def over_time(runs: Runs) -> Figure:
    """Accuracy on each task after each task; the mean over seeds."""
    made = figure_of(8, 3)
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
    made = figure_of(2 + 0.3 * min(len(names), 24), 1.6 + 0.28 * min(len(names), 24))
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
    made = figure_of(8, 2.8)
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
