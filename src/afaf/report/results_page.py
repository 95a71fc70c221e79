"""The page of a folder of results: every stream and method measured, variants beside their presets, differences over paired seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from afaf.methods import method_names
from afaf.report import svg
from afaf.report.measured import Measured, Paired, Shape, Spread, failure, mean_matrix, minus
from afaf.report.page import Page, Section, chart, charts, html_table, number_card, stack
from afaf.report.run_page import confusion_map
from afaf.streams.benchmarks import BENCHMARKS
from afaf.sweeps.store import Line, Store

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7b4fb5", "#5f9e3e", "#b03a5b")
PAIRED = "Differences are means over the seeds that both have, with the 95 % interval of Student's t."


def results_page(folder: Path) -> Page:
    measured = Measured(Store(folder).read().values())
    done = [line for line in measured.lines if failure(line) is None]
    shapes = [shape for shape in sorted_shapes(measured) if measured.runs(shape)]
    by_stream = presets_by_stream(measured)
    plain = [shape for here in by_stream.values() for shape in here]
    sections = [Section("headline", "Headline", headline(measured, done, shapes))]
    for stream, here in by_stream.items():
        sections.append(Section(f"stream-{stream}", stream, stream_section(measured, stream, here), PAIRED))
    varied = [shape for shape in shapes if shape.settings]
    sections += [
        Section(
            "r-matrix", "Accuracy after each task", matrices(measured, plain), "Means over seeds; rows after a task, columns on a task."
        ),
        Section(
            "confusion",
            "Confusion by class",
            confusions(measured, by_stream),
            "The method of highest ACC after the last task, all seeds; squares outline tasks.",
        ),
        Section("variants", "Variants and studies", variants(measured, varied), f"Settings that differ from the preset. {PAIRED}"),
        Section("costs", "Costs against dense", costs(measured, by_stream), "The dense network and its training are 1."),
        Section("seeds", "All seeds", all_seeds(measured, shapes) + without_numbers(measured)),
    ]
    commits = sorted({line.get("commit", "unknown")[:12] for line in measured.lines})
    devices = sorted({line.get("device", "unknown") for line in measured.lines})
    subtitle = f"{counted(measured, done)} of {len(shapes)} kinds, measured on {', '.join(devices)}; mean ± standard deviation over seeds"
    return Page("Results", subtitle, tuple(sections), f"Made by afaf report from {folder.name}/ alone. Commits: {', '.join(commits)}.")


def counted(measured: Measured, done: Sequence[Line]) -> str:
    """How many runs have numbers, and of how many where not all do."""
    all_of_them = len(measured.lines)
    return f"{len(done)} runs" if len(done) == all_of_them else f"{len(done)} of {all_of_them} runs have numbers,"


def colour_of(method: str) -> str:
    """The same on every stream."""
    known = method_names()
    return COLOURS[(known.index(method) if method in known else len(known) + sum(method.encode())) % len(COLOURS)]


def sorted_shapes(measured: Measured) -> list[Shape]:
    """Every kind of run, in the order of the built-in streams and methods."""
    streams, methods = list(BENCHMARKS), method_names()

    def rank(shape: Shape) -> tuple[int, str, int, str]:
        stream = streams.index(shape.stream) if shape.stream in streams else len(streams)
        method = methods.index(shape.method) if shape.method in methods else len(methods)
        return stream, shape.stream, method, shape.key[2]

    return sorted(measured.shapes(), key=rank)


def presets_by_stream(measured: Measured) -> dict[str, list[Shape]]:
    """The methods with their presets that have numbers, by stream."""
    found: dict[str, list[Shape]] = {}
    for shape in sorted_shapes(measured):
        if not shape.settings and measured.runs(shape):
            found.setdefault(shape.stream, []).append(shape)
    return found


def best_of(measured: Measured, shapes: Sequence[Shape]) -> tuple[Shape, Spread] | None:
    """The shape of highest mean ACC."""
    known = [(shape, spread) for shape in shapes if (spread := measured.spread(shape, "acc")) is not None]
    return max(known, key=lambda one: one[1].mean, default=None)


def less(measured: Measured, a: Shape, b: Shape) -> str:
    """ACC of a less ACC of b over paired seeds, as text."""
    found = Paired.of(minus(measured.values(a, "acc"), measured.values(b, "acc")).values()) if a != b else None
    return "–" if found is None else f"{found} (n {found.n})"


def headline(measured: Measured, done: Sequence[Line], shapes: Sequence[Shape]) -> str:
    cards = []
    for stream, here in presets_by_stream(measured).items():
        best = best_of(measured, here)
        if best is not None:
            shape, found = best
            spread = "" if found.std is None else f"± {found.std:.1f}, "
            beside = f", the highest of {len(here)} methods" if len(here) > 1 else ""
            cards.append(number_card(f"{found.mean:.1f}", f"{shape.method} on {stream}", f"{spread}{found.n} seeds{beside}"))
    seconds = sum(line.get("seconds", 0) for line in measured.lines)
    beside = "" if len(done) == len(measured.lines) else f"of {len(measured.lines)}, the others have no numbers; "
    cards.append(number_card(str(len(done)), "runs", f"{beside}{len(shapes)} kinds, {seconds / 3600:.1f} hours"))
    return f'<div class="cards">{"".join(cards)}</div>'


def stream_section(measured: Measured, stream: str, shapes: Sequence[Shape]) -> str:
    rows, marks, series = [], [], []
    best = best_of(measured, shapes)
    for shape in shapes:
        name, colour = shape.method, colour_of(shape.method)
        found = [measured.spread(shape, metric) for metric in ("acc", "bwt", "acc_task_il")]
        beside = [less(measured, shape, best[0])] if best and len(shapes) > 1 else []
        rows.append([name, *("–" if s is None else str(s) for s in found), measured.count(shape), *beside])
        dots = [(value, colour, f"{name}, seed {seed}\nACC {value:.2f} %") for seed, value in measured.values(shape, "acc").items()]
        marks.append((name[:18], dots))
        series.append(average_over_time(measured, shape, name, colour))
    known = [one for one in series if any(value is not None for value in one.y)]

    def says(one: svg.Series, i: int) -> str:
        return f"{one.name} after task {one.x[i]:g}\nmean accuracy so far: {one.y[i]:.2f} %"

    ticks = known[0].x if known else None
    drawn = svg.lines(known, "ACC over time", says, x_title="after task", y_title="mean accuracy (%)", y_range=(0, 100), x_ticks=ticks)
    headings = ["method", "ACC", "BWT", "task-IL", "n", *([f"ACC less that of {best[0].method}"] if best and len(shapes) > 1 else [])]
    return charts(
        chart("", html_table(headings, rows)),
        stack(
            chart("ACC of every seed", svg.dots(marks, f"ACC on {stream}", left=104)),
            chart("mean accuracy on the tasks so far", drawn, below=svg.legend([(one.name, one.colour) for one in known])),
        ),
    )


def average_over_time(measured: Measured, shape: Shape, name: str, colour: str) -> svg.Series:
    """ACC after each task, mean and spread over seeds."""
    matrices = [line["R"] for line in measured.runs(shape).values()]
    n_tasks = len(matrices[0]) if matrices else 0
    spreads: list[Spread | None] = []
    for j in range(n_tasks):
        rows = [R[j] for R in matrices if all(value is not None for value in R[j])]
        spreads.append(Spread.of(float(np.mean(row)) for row in rows))
    y = [None if one is None else one.mean for one in spreads]
    return svg.Series(name, colour, list(range(1, n_tasks + 1)), y, [None if one is None else one.std for one in spreads])


def matrices(measured: Measured, shapes: Sequence[Shape]) -> str:
    """Folded by stream: class-IL and task-IL of each method."""
    parts: list[str] = []
    for stream in dict.fromkeys(shape.stream for shape in shapes):
        boxes = []
        for shape in (shape for shape in shapes if shape.stream == stream):
            lines = list(measured.runs(shape).values())
            for setting, name in (("class-IL", "R"), ("task-IL", "R_task_il")):
                R = mean_matrix([line[name] for line in lines])
                numbers = [str(i + 1) for i in range(len(R))]

                def says(j: int, i: int, value: float, what: str = f"{shape.method}, {setting}") -> str:
                    return f"{what}\nafter task {j + 1}, task {i + 1}: {value:.2f} %"

                drawn = svg.heat_map(R, f"{shape.method} {setting}", says, rows=numbers, columns=numbers, row_title="after task")
                boxes.append(chart(f"{shape.method}, {setting}", drawn))
        first = " open" if not parts else ""
        parts.append(f"<details{first}><summary>{escape(stream)}</summary>{charts(*boxes)}</details>")
    return "".join(parts)


def confusions(measured: Measured, by_stream: Mapping[str, Sequence[Shape]]) -> str:
    boxes = []
    for stream, shapes in by_stream.items():
        best = best_of(measured, shapes)
        lines = [line for line in measured.runs(best[0]).values() if line.get("confusion")] if best else []
        if best and lines and stream in BENCHMARKS:
            counts = np.sum([line["confusion"] for line in lines], axis=0)
            boxes.append(chart(f"{stream}, {best[0].method}", confusion_map(counts, BENCHMARKS[stream].outline().class_names)))
    return charts(*boxes)


def variants(measured: Measured, shapes: Sequence[Shape]) -> str:
    """A table for each stream, each method with its preset above its variants."""
    boxes = []
    for stream in dict.fromkeys(shape.stream for shape in shapes):
        rows = []
        for shape in with_presets([shape for shape in shapes if shape.stream == stream]):
            found = [measured.spread(shape, metric) for metric in ("acc", "bwt", "la", "acc_task_il")]
            if found[0] is None:
                continue
            numbers = ["–" if s is None else str(s) for s in found]
            name = shape.method + (_changed(shape) or " (preset)")
            rows.append([name, *numbers, measured.count(shape), less(measured, shape, Shape(stream, shape.method))])
        boxes.append(chart(stream, html_table(["variant", "ACC", "BWT", "LA", "task-IL", "n", "ACC less the preset's"], rows)))
    return charts(*boxes)


def with_presets(shapes: Sequence[Shape]) -> list[Shape]:
    """Variants on one stream by method, after what they are to be compared with."""
    methods = dict.fromkeys(shape.method for shape in shapes)
    return [one for method in methods for one in (Shape(shapes[0].stream, method), *(shape for shape in shapes if shape.method == method))]


def _changed(shape: Shape) -> str:
    """What differs from the preset, each setting with the section it is in."""
    differing = ", ".join(f"{'.'.join(name.split('.')[-2:])} = {json.dumps(value)}" for name, value in shape.settings.items())
    return f" ({differing})" if differing else ""


def costs(measured: Measured, by_stream: Mapping[str, Sequence[Shape]]) -> str:
    boxes = []
    named = (("params_ratio", "#params"), ("counted_flops_ratio", "FLOPs (counted)"))
    for stream, shapes in by_stream.items():
        rows = []
        for shape in shapes:
            line = next(iter(measured.runs(shape).values()))
            for (key, label), colour in zip(named, ("var(--accent)", "#e69f00"), strict=True):
                value = (line.get("costs") or {}).get(key)
                if value is not None:
                    name = shape.method if key == named[0][0] else ""
                    rows.append((name[:15], value, colour, f"{shape.method}, {label}: {value:.4f} of dense"))
        if rows:
            drawn = svg.bars(rows, f"costs on {stream}", high=max(1.0, *(value for _, value, _, _ in rows)), mark=1.0)
            boxes.append(chart(stream, drawn, below=svg.legend([("#params", "var(--accent)"), ("training FLOPs, counted", "#e69f00")])))
    return charts(*boxes)


def all_seeds(measured: Measured, shapes: Sequence[Shape]) -> str:
    rows = []
    for shape in shapes:
        for seed, line in measured.runs(shape).items():
            values = [line[name] for name in ("acc", "bwt", "acc_task_il")]
            row = [f"{shape.stream} {shape.method}{_changed(shape)}", str(seed), *("–" if v is None else f"{v:.2f}" for v in values)]
            rows.append([*row, f"{line.get('seconds', 0):.0f}"])
    shown = html_table(["run", "seed", "ACC", "BWT", "task-IL", "s"], rows)
    return f"<details><summary>{len(rows)} runs</summary>{shown}</details>"


def without_numbers(measured: Measured) -> str:
    """The runs that stopped or collapsed, and why."""
    rows = [
        [f"{shape.stream} {shape.method}{_changed(shape)}", str(seed), why]
        for shape in sorted_shapes(measured)
        for seed, why in measured.failures(shape).items()
    ]
    shown = html_table(["run", "seed", "why"], rows, words=(2,))
    return f"<details><summary>{len(rows)} runs without numbers</summary>{shown}</details>" if rows else ""
