"""Figures 1, 2 and 8: two tasks, a network small enough to draw, and hidden representations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from afaf.report.figures import task_colour
from afaf.report.for_papers import empty_figure
from afaf.report.measured import Shape
from afaf.sweeps.store import Line
from paper.measured import Measured, costs
from paper.settings import LAST, LOWEST, PAIRS, SMALL

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#8a8a8a"


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
    made = empty_figure(11, 3.0)
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
    made = empty_figure(3.1 * len(kept), 4.6)
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
    made = empty_figure(5.2 * len(found), 2.6)
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
