"""The page of a folder of results: every stream and method measured, the studies, and what the paper's claims come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from afaf.report import svg
from afaf.report.claims import CLAIMS, PAIRS
from afaf.report.measured import Measured, Shape, Spread, failure, mean_matrix
from afaf.report.page import Page, Section, chart, charts, html_table, number_card, stack
from afaf.report.paper import method_title, paper, title_of
from afaf.report.run_page import confusion_map
from afaf.streams.benchmarks import BENCHMARKS
from afaf.sweeps.store import Line, Store

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7b4fb5", "#5f9e3e", "#b03a5b")


def results_page(folder: Path) -> Page:
    measured = Measured(Store(folder).read().values())
    done = [line for line in measured.lines if failure(line) is None]
    shapes = [shape for shape in sorted_shapes(measured) if measured.runs(shape)]
    plain = [shape for shape in shapes if not shape.settings]
    streams = list(dict.fromkeys(shape.stream for shape in plain))
    sections = [Section("headline", "Headline", headline(measured, done, shapes))]
    for stream in streams:
        here = [shape for shape in plain if shape.stream == stream]
        sections.append(Section(f"stream-{stream}", title_of(stream), stream_section(measured, stream, here)))
    varied = [shape for shape in shapes if shape.settings]
    of_paper = any(shape.stream in (*paper()["streams"], PAIRS) for shape in shapes)
    sections += [
        Section(
            "r-matrix", "Accuracy after each task", matrices(measured, plain), "Means over seeds; rows after a task, columns on a task."
        ),
        Section(
            "confusion", "Confusion by class", confusions(measured, streams), "AFAF after the last task, all seeds; squares outline tasks."
        ),
        Section("variants", "Variants and studies", variants(measured, varied), "Settings that differ from the preset."),
        Section("costs", "Costs against dense", costs(measured, plain, streams), "The dense network and its training are 1."),
        Section(
            "claims", "The paper's claims", claims(measured) if of_paper else "", "On paired seeds; REPRODUCTION.md has every comparison."
        ),
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
    known = [*paper()["methods"]]
    return COLOURS[(known.index(method) if method in known else len(known) + sum(method.encode())) % len(COLOURS)]


def sorted_shapes(measured: Measured) -> list[Shape]:
    """Every kind of run there is, in the paper's order of streams and methods."""
    streams, methods = list(paper()["streams"]), list(paper()["methods"])

    def rank(shape: Shape) -> tuple[int, int, str]:
        stream = streams.index(shape.stream) if shape.stream in streams else len(streams)
        method = methods.index(shape.method) if shape.method in methods else len(methods)
        return stream, method, shape.key[2]

    return sorted(measured.shapes(), key=rank)


def _paper_acc(stream: str, method: str) -> Sequence[float] | None:
    found: Sequence[float] | None = paper()["table-2"].get(stream, {}).get(method, {}).get("acc")
    return found


def headline(measured: Measured, done: Sequence[Line], shapes: Sequence[Shape]) -> str:
    cards = []
    for stream in paper()["streams"]:
        found = measured.spread(Shape(stream, "afaf"), "acc")
        if found is not None:
            printed = _paper_acc(stream, "afaf")
            spread = "" if found.std is None else f"± {found.std:.1f}, "
            beside = f"; paper {printed[0]:.2f} ± {printed[1]:.2f}" if printed else ""
            cards.append(number_card(f"{found.mean:.1f}", f"AFAF on {title_of(stream)}", f"{spread}{found.n} seeds{beside}"))
    seconds = sum(line.get("seconds", 0) for line in measured.lines)
    beside = "" if len(done) == len(measured.lines) else f"of {len(measured.lines)}, the others have no numbers; "
    cards.append(number_card(str(len(done)), "runs", f"{beside}{len(shapes)} kinds, {seconds / 3600:.1f} hours"))
    return f'<div class="cards">{"".join(cards)}</div>'


def stream_section(measured: Measured, stream: str, shapes: Sequence[Shape]) -> str:
    rows, marks, series = [], [], []
    in_paper = any(_paper_acc(stream, shape.method) for shape in shapes)
    for shape in shapes:
        name, colour = method_title(shape.method), colour_of(shape.method)
        found = {metric: measured.spread(shape, metric) for metric in ("acc", "bwt", "acc_task_il")}
        printed = _paper_acc(stream, shape.method)
        beside = ["–" if printed is None else f"{printed[0]:.2f} ± {printed[1]:.2f}"] if in_paper else []
        rows.append([name, *("–" if s is None else str(s) for s in found.values()), *beside, measured.count(shape)])
        seeds = measured.values(shape, "acc")
        dots = [(value, colour, f"{name}, seed {seed}\nACC {value:.2f} %") for seed, value in seeds.items()]
        if printed is not None:
            dots.append((printed[0], "var(--soft)", f"{name}, the paper\nACC {printed[0]:.2f} ± {printed[1]:.2f} %"))
        marks.append((name[:18], dots))
        series.append(_average_over_time(measured, shape, name, colour))
    known = [one for one in series if any(value is not None for value in one.y)]

    def says(one: svg.Series, i: int) -> str:
        return f"{one.name} after task {one.x[i]:g}\nmean accuracy so far: {one.y[i]:.2f} %"

    ticks = known[0].x if known else None
    drawn = svg.lines(known, "ACC over time", says, x_title="after task", y_title="mean accuracy (%)", y_range=(0, 100), x_ticks=ticks)
    headings = ["method", "ACC", "BWT", "task-IL", *(["paper ACC"] if in_paper else []), "n"]
    return charts(
        chart("", html_table(headings, rows)),
        stack(
            chart("ACC of every seed" + ("; grey: the paper" if in_paper else ""), svg.dots(marks, f"ACC on {stream}", left=104)),
            chart("mean accuracy on the tasks so far", drawn, below=svg.legend([(one.name, one.colour) for one in known])),
        ),
    )


def _average_over_time(measured: Measured, shape: Shape, name: str, colour: str) -> svg.Series:
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

                def says(j: int, i: int, value: float, what: str = f"{method_title(shape.method)}, {setting}") -> str:
                    return f"{what}\nafter task {j + 1}, task {i + 1}: {value:.2f} %"

                drawn = svg.heat_map(R, f"{shape.method} {setting}", says, rows=numbers, columns=numbers, row_title="after task")
                boxes.append(chart(f"{method_title(shape.method)}, {setting}", drawn))
        first = " open" if not parts else ""
        parts.append(f"<details{first}><summary>{escape(title_of(stream))}</summary>{charts(*boxes)}</details>")
    return "".join(parts)


def confusions(measured: Measured, streams: Sequence[str]) -> str:
    boxes = []
    for stream in streams:
        lines = [line for line in measured.runs(Shape(stream, "afaf")).values() if line.get("confusion")]
        if lines and stream in BENCHMARKS:
            counts = np.sum([line["confusion"] for line in lines], axis=0)
            boxes.append(chart(title_of(stream), confusion_map(counts, BENCHMARKS[stream].outline().class_names)))
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
            rows.append(
                [shape.method + (_changed(shape) or " (preset)"), *("–" if s is None else str(s) for s in found), measured.count(shape)]
            )
        boxes.append(chart(title_of(stream), html_table(["variant", "ACC", "BWT", "LA", "task-IL", "n"], rows)))
    return charts(*boxes)


def with_presets(shapes: Sequence[Shape]) -> list[Shape]:
    """Variants on one stream by method, after what they are to be compared with."""
    methods = dict.fromkeys(shape.method for shape in shapes)
    return [one for method in methods for one in (Shape(shapes[0].stream, method), *(shape for shape in shapes if shape.method == method))]


def _changed(shape: Shape) -> str:
    """What differs from the preset, each setting with the section it is in."""
    differing = ", ".join(f"{'.'.join(name.split('.')[-2:])} = {json.dumps(value)}" for name, value in shape.settings.items())
    return f" ({differing})" if differing else ""


def costs(measured: Measured, shapes: Sequence[Shape], streams: Sequence[str]) -> str:
    boxes = []
    named = (("params_ratio", "#params"), ("counted_flops_ratio", "FLOPs (counted)"))
    for stream in streams:
        rows = []
        for shape in (shape for shape in shapes if shape.stream == stream):
            line = next(iter(measured.runs(shape).values()))
            for (key, label), colour in zip(named, ("var(--accent)", "#e69f00"), strict=True):
                value = (line.get("costs") or {}).get(key)
                if value is not None:
                    name = method_title(shape.method)
                    rows.append((name[:15] if key == named[0][0] else "", value, colour, f"{name}, {label}: {value:.4f} of dense"))
        if rows:
            drawn = svg.bars(rows, f"costs on {stream}", high=max(1.0, *(value for _, value, _, _ in rows)), mark=1.0)
            boxes.append(
                chart(title_of(stream), drawn, below=svg.legend([("#params", "var(--accent)"), ("training FLOPs, counted", "#e69f00")]))
            )
    return charts(*boxes)


def claims(measured: Measured) -> str:
    rows = ""
    for claim in CLAIMS:
        verdict = claim.verdict(claim.check(measured))
        mark = "holds" if verdict.startswith("holds") else "contradicted" if verdict.startswith("does not") else ""
        rows += f'<tr><td>{escape(claim.text)}</td><td class="words {mark}">{escape(verdict)}</td></tr>'
    head = '<thead><tr><th>claim</th><th class="words">verdict</th></tr></thead>'
    return f'<div class="chart"><table>{head}<tbody>{rows}</tbody></table></div>'


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
