"""The paper's figures, drawn from results/ alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from afaf.evaluation import metrics
from afaf.files import make_folders
from afaf.report.claims import DENSER, LAST, LOWEST, PAIRS, RANDOM, SMALL, STREAMS
from afaf.report.figures import task_colour
from afaf.report.measured import Measured, Shape, costs, first_reuse
from afaf.report.paper import paper, title_of
from afaf.runs.folder import write_whole
from afaf.sweeps.store import Line

H = TypeVar("H", bound=Hashable)
V = TypeVar("V")
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#8a8a8a"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "afaf",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

DATE = {".svg": "Date", ".pdf": "CreationDate"}  # left out: the same results make the same file


@dataclass(frozen=True)
class Drawing:
    title: str
    draw: Callable[[Measured], Figure | None]
    caption: str


def figure_of(width: float, height: float) -> Figure:
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


class Figures:
    """Every figure there are results for."""

    def __init__(self, measured: Measured):
        self.measured = measured

    def draw_all(self, folder: Path, suffixes: Sequence[str] = (".svg",), advice: str = "") -> list[Path]:
        """The files written; the folder is made with the first."""
        written = []
        with matplotlib.rc_context(STYLE):
            for name, drawing in FIGURES.items():
                made = drawing.draw(self.measured)
                if made is not None:
                    make_folders(folder, advice)
                    written += [_save(made, folder / f"{name}{suffix}") for suffix in suffixes]
        return written


def _save(made: Figure, path: Path) -> Path:
    metadata = {DATE[path.suffix]: None} if path.suffix in DATE else None
    write_whole(path, lambda place: made.savefig(place, metadata=metadata))
    return path


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
    made = figure_of(9, 2.7 * len(streams))
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
    made = figure_of(7, 2.8)
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
    made = figure_of(3.6 * len(sweeps), 2.8)
    for axes, (stream, sweep) in zip(made.subplots(1, len(sweeps), squeeze=False)[0], sweeps.items(), strict=True):
        _draw_scaled(axes, sweep, "l_reuse", title_of(stream))
    return made


def l_reuse_raw(m: Measured) -> Figure | None:
    """Figure 6."""
    sweeps = _l_reuse_sweeps(m)
    if not sweeps:
        return None
    made = figure_of(9, 2.6 * len(sweeps))
    for row, (stream, sweep) in zip(made.subplots(len(sweeps), 3, squeeze=False), sweeps.items(), strict=True):
        for axes, (metric, (known, seeds)) in zip(row, sweep.items(), strict=True):
            _draw_raw(axes, known, seeds, "l_reuse", f"{title_of(stream)}: {metric} (%)")
    return made


def candidate_share(m: Measured) -> Figure | None:
    """Figure 7."""
    sweep = _sweep(m, "sim-cifar10", "method.candidate_share", (10, 20, 30, 40, 50), 30)
    if len(sweep["ACC"][0]) < 2:
        return None
    made = figure_of(11, 2.6)
    panels = made.subplots(1, 4)
    for axes, (metric, (known, seeds)) in zip(panels, sweep.items(), strict=False):
        _draw_raw(axes, known, seeds, "candidates (%)", f"sim-CIFAR10: {metric} (%)")
    _draw_scaled(panels[3], sweep, "candidates (%)", "together")
    return made


# Two tasks.


def _bars(axes: Axes, names: Sequence[str], groups: Mapping[str, Sequence[Sequence[float]]], colours: Sequence[str]) -> None:
    """Groups of bars with a dot for each seed."""
    width = 0.8 / len(groups)
    for place, ((label, columns), colour) in enumerate(zip(groups.items(), colours, strict=False)):
        for i, seeds in enumerate(columns):
            x = i + (place - (len(groups) - 1) / 2) * width
            if len(seeds):
                axes.bar(x, float(np.mean(seeds)), width * 0.92, color=colour, alpha=0.75, label=label if i == 0 else None)
                axes.plot([x] * len(seeds), seeds, "o", color="black", markersize=2.5, alpha=0.6)
    axes.set_xticks(range(len(names)), names)


def illustrations(m: Measured) -> Figure | None:
    """Figure 1."""
    mine, lowest, last = (m.runs(Shape(PAIRS, "afaf", settings)) for settings in ({}, LOWEST, LAST))
    adding = m.runs(Shape(PAIRS, "spacenet"))
    if not mine or not (lowest or last or adding):
        return None
    made = figure_of(11, 3.0)
    a, b, c, d = made.subplots(1, 4, width_ratios=[1.2, 1.2, 1, 1.2])

    def accuracy(runs: Mapping[int, Line], task: int) -> list[float]:
        return [line["R"][-1][task] for line in runs.values()]

    groups = {name: [accuracy(runs, 0), accuracy(runs, 1)] for name, runs in (("AFAF", mine), ("lowest", lowest))}
    _bars(a, ["task A", "task B"], groups, (BLUE, GREEN))
    a.set_title("(a) two sub-networks\nclass-IL accuracy (%)")
    a.legend(frameon=False, fontsize=8)
    settings = {
        name: [[line["acc_task_il"] for line in runs.values()], [line["acc"] for line in runs.values()]]
        for name, runs in (("AFAF", mine), ("l_reuse = L-1", last))
    }
    _bars(b, ["task-IL", "class-IL"], settings, (BLUE, ORANGE))
    b.set_title("(b) reusing all\nACC (%)")
    b.legend(frameon=False, fontsize=8)
    found = {"adding": ([line["acc"] for line in adding.values()]), "reusing": ([line["acc"] for line in mine.values()])}
    _bars(c, list(found), {"": list(found.values())}, (BLUE,))
    c.set_title("(c) adding or reusing\nclass-IL ACC (%)")
    both = [costs(PAIRS, "spacenet"), costs(PAIRS, "afaf")]
    relative = {
        "adding": [[1.0], [1.0], [1.0]],
        "reusing": [
            [both[1].params / both[0].params],
            [(both[1].paper_flops or 0) / (both[0].paper_flops or 1)],
            [both[1].counted_flops / both[0].counted_flops],
        ],
    }
    _bars(d, ["#params", "FLOPs\n(paper)", "FLOPs\n(counted)"], relative, (GREY, BLUE))
    d.set_title("(c) costs relative\nto adding")
    d.set_ylim(0, 1.3)
    d.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    return made


WAYS = {
    "ewc": "(a) dense, regularised\nevery task moves all",
    "packnet": "(b) dense, then pruned\nPackNet",
    "spacenet": "(c) sparse\nSpaceNet",
    "afaf": "(d) sparse, with reuse\nAFAF",
}


def four_ways(m: Measured) -> Figure | None:
    """Figure 2: one small network after two tasks, altered in four ways."""
    kept = {}
    for method in WAYS:
        runs = m.runs(Shape("digit-pairs", method))
        if runs and "kept" in next(iter(runs.values())):
            kept[method] = next(iter(runs.values()))["kept"]["ledger"]
    if not kept:
        return None
    made = figure_of(3.1 * len(kept), 4.6)
    for axes, (method, ledger) in zip(made.subplots(1, len(kept), squeeze=False)[0], kept.items(), strict=True):
        draw_network(axes, ledger)
        axes.set_title(WAYS[method], fontsize=9)
    handles = [Line2D([], [], color=task_colour(t), label=f"connections of task {t}") for t in (1, 2)]
    handles += [Line2D([], [], marker="o", linestyle="", color=task_colour(t), label=f"fixed by task {t}") for t in (1, 2)]
    handles.append(Line2D([], [], marker="o", linestyle="", color=GREY, markerfacecolor="white", label="free"))
    handles.append(Line2D([], [], marker="o", linestyle="", color="black", markerfacecolor="none", markersize=9, label="candidate"))
    made.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return made


def draw_network(axes: Axes, ledger: Mapping[str, Any]) -> None:
    """Neurons as circles, filled once fixed; connections in the colour of the task that owns them. Input at the bottom."""
    layers = [len(fixed) for fixed in ledger["fixed"]]
    places = [np.linspace(-1, 1, size) if size > 1 else np.zeros(1) for size in layers]
    for l, owner in enumerate(ledger["owner"]):
        owners = np.array(owner)
        crowded = int((owners > 0).sum()) > 200
        for task in range(1, int(owners.max(initial=0)) + 1):  # all of a task's connections as one broken line: a small file
            targets, sources = np.nonzero(owners == task)
            x = np.stack([places[l][sources], places[l + 1][targets], np.full(len(targets), np.nan)], 1).ravel()
            y = np.tile([l, l + 1, np.nan], len(targets))
            axes.plot(x, y, color=task_colour(task), linewidth=0.35 if crowded else 0.8, alpha=0.5 if crowded else 0.8)
    chosen = {
        int(l): {n for by_class in ledger["candidates"].values() for by_layer in by_class.values() for n in by_layer.get(l, ())}
        for by_class in ledger["candidates"].values()
        for by_layer in by_class.values()
        for l in by_layer
    }
    for l, fixed in enumerate(ledger["fixed"]):
        small = layers[l] > 20
        for n, task in enumerate(fixed):
            face = task_colour(task) if task else "white"
            axes.plot(places[l][n], l, "o", color=face, markeredgecolor=GREY, markeredgewidth=0.6, markersize=2 if small else 7, zorder=3)
            if n in chosen.get(l + 1, ()):
                axes.plot(places[l][n], l, "o", color="none", markeredgecolor="black", markersize=10, zorder=4)
    axes.set_yticks(range(len(layers)), ledger["layers"], fontsize=7)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def representations(m: Measured) -> Figure | None:
    """Figure 8: class means of the last hidden layer after task 1, neurons sorted by what they say about task 1."""
    found = {}
    for stream, title in ((PAIRS, "similar tasks"), ("dissimilar-pairs", "dissimilar tasks")):
        runs = {seed: line for seed, line in m.runs(Shape(stream, "afaf", SMALL)).items() if "kept" in line}
        if runs:
            found[title] = next(iter(runs.values()))["kept"]["class-means"]
    if not found:
        return None
    made = figure_of(5.2 * len(found), 2.6)
    for axes, (title, kept) in zip(made.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        names = [name for task in kept["tasks"] for name in task]
        values = np.array([kept["means"][name] for name in names])
        first, second = values[0], values[1]
        order = np.argsort(second - first, kind="stable")
        image = axes.imshow(values[:, order], aspect="auto", cmap="viridis", interpolation="nearest")
        tasks = [number for number, task in enumerate(kept["tasks"], 1) for _ in task]
        axes.set_yticks(range(len(names)), [f"{name} (task {task})" for name, task in zip(names, tasks, strict=True)])
        axes.axhline(len(kept["tasks"][0]) - 0.5, color="white", linewidth=1.5)
        axes.set_title(title)
        axes.set_xlabel("neurons of the last hidden layer")
        made.colorbar(image, ax=axes, label="mean activation", shrink=0.9)
    return made


def main_table(m: Measured) -> Figure | None:
    """Table 2 at a glance: the paper's means and ours."""
    if not any(m.runs(Shape(stream, method)) for stream in STREAMS for method in paper()["table-2"][stream]):
        return None
    made = figure_of(11, 3.0)
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
