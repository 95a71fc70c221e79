"""The paper's figures, drawn from results alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from afaf.evaluation import metrics
from afaf.files import make_folders
from afaf.report.for_papers import STYLE, empty_figure, save_figure
from afaf.report.measured import Shape
from afaf.sweeps.store import Line
from paper.measured import Measured, first_reuse
from paper.printed import paper, title_of
from paper.settings import DENSER, LOWEST, RANDOM, STREAMS
from paper.small_figures import BLUE, GREEN, GREY, ORANGE, four_ways, illustrations, representations

H = TypeVar("H", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class Drawing:
    title: str
    draw: Callable[[Measured], Figure | None]
    caption: str


def in_common(by_shape: Mapping[H, Mapping[int, V]]) -> dict[H, list[V]]:
    """Of what was measured, the seeds that all have which have any: seeds differ by more than most settings do."""
    measured = {shape: by_seed for shape, by_seed in by_shape.items() if by_seed}
    shared = set.intersection(*(set(by_seed) for by_seed in measured.values())) if measured else set()
    return {shape: [value for seed, value in by_seed.items() if not shared or seed in shared] for shape, by_seed in measured.items()}


# Over time.


def over_time(line: Line, metric: str, first: int) -> list[float]:
    """ACC, BWT or LA (of the tasks from `first` on) after each task from `first` on."""
    R = line["R"]
    read: dict[str, Callable[[int], float | None]] = {
        "ACC": lambda t: metrics.average_accuracy(R[:t]),
        "BWT": lambda t: metrics.backward_transfer(R[:t]),
        "LA": lambda t: metrics.learning_accuracy(R[:t], first),
    }
    values = [read[metric](t) for t in range(first, len(R) + 1)]
    return [float("nan") if value is None else value for value in values]


def curve(axes: Axes, x: Sequence[float], rows: NDArray[np.float64], colour: str, label: str) -> None:
    """The mean over seeds, with a band of one standard deviation."""
    mean = rows.mean(0)
    axes.plot(x, mean, marker="o", markersize=3.5, color=colour, label=f"{label} (n = {len(rows)})")
    if len(rows) > 1:
        spread = rows.std(0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def selective_transfer(m: Measured) -> Figure | None:
    """Figure 3."""
    rules: dict[str, tuple[Mapping[str, Any], str]] = {"most": ({}, BLUE), "random": (RANDOM, ORANGE), "lowest": (LOWEST, GREEN)}
    streams = [s for s in ("mix", "sim-cifar10") if any(m.runs(Shape(s, "afaf", settings)) for settings, _ in list(rules.values())[1:])]
    if not streams:
        return None
    made = empty_figure(9, 2.7 * len(streams))
    panels = made.subplots(len(streams), 3, squeeze=False)
    for row, stream in enumerate(streams):
        first = first_reuse(stream)
        measured = in_common({rule: m.runs(Shape(stream, "afaf", settings)) for rule, (settings, _) in rules.items()})
        for axes, metric in zip(panels[row], ("ACC", "BWT", "LA"), strict=True):
            for rule, lines in measured.items():
                values = np.array([over_time(line, metric, first) for line in lines])
                curve(axes, range(first, first + values.shape[1]), values, rules[rule][1], rule)
            axes.set_title(f"{title_of(stream)}: {metric} (%)")
            axes.set_xlabel("after task")
            axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0][0].legend(frameon=False, fontsize=8)
    return made


def density(m: Measured) -> Figure | None:
    """Figure 5."""
    shown = {"5 %": ({}, BLUE), "12 %": (DENSER, ORANGE)}
    if not m.runs(Shape("mix", "afaf", DENSER)):
        return None
    made = empty_figure(7, 2.8)
    measured = in_common({label: m.runs(Shape("mix", "afaf", settings)) for label, (settings, _) in shown.items()})
    for axes, metric in zip(made.subplots(1, 2), ("ACC", "LA"), strict=True):
        for label, lines in measured.items():
            values = np.array([over_time(line, metric, 1) for line in lines])
            curve(axes, range(1, 1 + values.shape[1]), values, shown[label][1], label)
        axes.set_title(f"Mix: {metric} (%)")
        axes.set_xlabel("after task")
    axes.legend(frameon=False, fontsize=8, title="density of tasks 1-4")
    return made


# Over a setting.


def _sweep(m: Measured, stream: str, option: str, values: Sequence[int], default: int) -> dict[str, tuple[list[int], list[list[float]]]]:
    """ACC, BWT and LA by value of an option: the values measured, and each one's seeds."""
    found: dict[str, tuple[list[int], list[list[float]]]] = {}
    for name in ("acc", "bwt", "la"):
        measured = in_common({v: m.values(Shape(stream, "afaf", {} if v == default else {option: v}), name) for v in values})
        found[name.upper()] = (list(measured), list(measured.values()))
    return found


def _scaled(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values)
    scaled: NDArray[np.float64] = (array - array.min()) / max(float(np.ptp(array)), 1e-9)
    return scaled


def _draw_scaled(axes: Axes, sweep: Mapping[str, tuple[list[int], list[list[float]]]], label: str, title: str) -> None:
    for (metric, (known, seeds)), colour in zip(sweep.items(), (BLUE, ORANGE, GREEN), strict=True):
        axes.plot(known, _scaled([float(np.mean(each)) for each in seeds]), marker="o", markersize=4, color=colour, label=metric)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_xticks(known)
    axes.set_ylabel("min-max scaled")
    axes.legend(frameon=False, fontsize=8)


def _draw_raw(axes: Axes, known: Sequence[int], seeds: Sequence[Sequence[float]], label: str, title: str) -> None:
    spread = [float(np.std(each, ddof=1)) if len(each) > 1 else 0.0 for each in seeds]
    axes.errorbar(known, [float(np.mean(each)) for each in seeds], spread, marker="o", markersize=4, capsize=3, color=BLUE)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_xticks(known)


def _l_reuse_sweeps(m: Measured) -> dict[str, dict[str, tuple[list[int], list[list[float]]]]]:
    sweeps = {stream: _sweep(m, stream, "method.l_reuse", (2, 3, 4, 5), 4) for stream in ("mix", "sim-cifar10")}
    return {stream: sweep for stream, sweep in sweeps.items() if len(sweep["ACC"][0]) > 1}


def l_reuse_scaled(m: Measured) -> Figure | None:
    """Figure 4."""
    sweeps = _l_reuse_sweeps(m)
    if not sweeps:
        return None
    made = empty_figure(3.6 * len(sweeps), 2.8)
    for axes, (stream, sweep) in zip(made.subplots(1, len(sweeps), squeeze=False)[0], sweeps.items(), strict=True):
        _draw_scaled(axes, sweep, "l_reuse", title_of(stream))
    return made


def l_reuse_raw(m: Measured) -> Figure | None:
    """Figure 6."""
    sweeps = _l_reuse_sweeps(m)
    if not sweeps:
        return None
    made = empty_figure(9, 2.6 * len(sweeps))
    for row, (stream, sweep) in zip(made.subplots(len(sweeps), 3, squeeze=False), sweeps.items(), strict=True):
        for axes, (metric, (known, seeds)) in zip(row, sweep.items(), strict=True):
            _draw_raw(axes, known, seeds, "l_reuse", f"{title_of(stream)}: {metric} (%)")
    return made


def candidate_share(m: Measured) -> Figure | None:
    """Figure 7."""
    sweep = _sweep(m, "sim-cifar10", "method.candidate_share", (10, 20, 30, 40, 50), 30)
    if len(sweep["ACC"][0]) < 2:
        return None
    made = empty_figure(11, 2.6)
    panels = made.subplots(1, 4)
    for axes, (metric, (known, seeds)) in zip(panels, sweep.items(), strict=False):
        _draw_raw(axes, known, seeds, "candidates (%)", f"sim-CIFAR10: {metric} (%)")
    _draw_scaled(panels[3], sweep, "candidates (%)", "together")
    return made


def main_table(m: Measured) -> Figure | None:
    """Table 2 at a glance: the paper's means and ours."""
    if not any(m.runs(Shape(stream, method)) for stream in STREAMS for method in paper()["table-2"][stream]):
        return None
    made = empty_figure(11, 3.0)
    for axes, stream in zip(made.subplots(1, 4, sharey=True), STREAMS, strict=True):
        for place, (method, printed) in enumerate(paper()["table-2"][stream].items()):
            mean, std = printed["acc"]
            axes.errorbar(mean, place - 0.15, xerr=std, fmt="o", color=GREY, markersize=4, capsize=2, label="paper" if place == 0 else None)
            values = list(m.values(Shape(stream, method), "acc").values())
            if values:
                axes.plot(values, [place + 0.18] * len(values), "|", color=BLUE, alpha=0.6, markersize=7, label="each seed")
                axes.plot(float(np.mean(values)), place + 0.18, "o", color=BLUE, markersize=4, label="measured")
        names = [paper()["methods"][method] for method in paper()["table-2"][stream]]
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"{title_of(stream)}: ACC (%)")
    made.axes[0].invert_yaxis()
    known = dict(zip(*reversed(made.axes[0].get_legend_handles_labels()), strict=True))
    made.legend(known.values(), known.keys(), frameon=False, fontsize=8, loc="outside lower center", ncols=len(known))
    return made


COMMON = "over the seeds that all values shown have in common (fewer than the tables', where some were measured more often)"
FIGURES: dict[str, Drawing] = {
    "table-2": Drawing(
        "Table 2: class-IL ACC", main_table, "Grey: the paper's mean and standard deviation. Blue: the mean measured here, and every seed."
    ),
    "figure-1": Drawing(
        "Figure 1: three illustrations with two tasks",
        illustrations,
        "Task A {cat, automobile}, then B {dog, truck}. Bars are means, dots are seeds.",
    ),
    "figure-2": Drawing(
        "Figure 2: four ways to alter a network",
        four_ways,
        "Who owns what after two tasks, from the ledger of one run each (seed 0). Not all of these small runs learned task 2 well.",
    ),
    "figure-3": Drawing("Figure 3: selective transfer", selective_transfer, f"Mean and a band of one standard deviation, {COMMON}."),
    "figure-4": Drawing("Figure 4: l_reuse, scaled", l_reuse_scaled, f"Means scaled from their smallest to their largest, {COMMON}."),
    "figure-5": Drawing(
        "Figure 5: higher density of the first four tasks of Mix", density, f"Mean and a band of one standard deviation, {COMMON}."
    ),
    "figure-6": Drawing("Figure 6: l_reuse", l_reuse_raw, f"Mean and standard deviation, {COMMON}."),
    "figure-7": Drawing("Figure 7: share of candidates", candidate_share, f"Mean and standard deviation, {COMMON}."),
    "figure-8": Drawing(
        "Figure 8: representations of similar and dissimilar tasks",
        representations,
        "Class means in the last hidden layer of one run (seed 0).",
    ),
}


def draw_all(measured: Measured, folder: Path, suffixes: Sequence[str] = (".svg",)) -> list[Path]:
    """Draw every figure that there are results for; the files written."""
    written = []
    with matplotlib.rc_context(STYLE):
        for name, drawing in FIGURES.items():
            made = drawing.draw(measured)
            if made is not None:
                make_folders(folder)
                written += [save_figure(made, folder / f"{name}{suffix}") for suffix in suffixes]
    return written
