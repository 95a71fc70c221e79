"""The page of a folder of results, or of run folders: all streams and methods, variants beside their presets, paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from afaf.errors import RunError
from afaf.methods import method_names
from afaf.report import svg
from afaf.report.measured import Measured, Paired, Shape, class_names, failure, mean_matrix, minus
from afaf.report.page import Page, Section, chart, charts, commits, folded, html_table, number, number_cards, stack
from afaf.report.run_page import confusion_map, costs_of_run, r_matrix, relevant_settings
from afaf.runs.folder import read_json, read_results
from afaf.runs.results import Spread
from afaf.streams.benchmarks import BENCHMARKS
from afaf.sweeps.store import Line, Store, key_of, numbers_of
from afaf.text import duration

# Colours of methods, in order of appearance; distinct with protanopia and deuteranopia, too.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#873c69",
    "#69d278",
    "#b40f2d",
    "#ffa5b4",
    "#961e87",
    "#e1784b",
)
PAIRED = "Differences are means over the common seeds, with the 95 % confidence interval (Student's t)."


def results_page(folder: Path) -> Page:
    measured = Measured(Store(folder).read().values())
    known = commits(line.get("commit") for line in measured.lines)
    return measured_page(measured, "Results", f"Made by afaf report from {folder.name}/ alone. {known}")


def comparison_page(folders: Sequence[Path]) -> Page:
    """The page of runs that differ in stream, method or settings."""
    measured = measured_runs(folders)
    known = commits(line["commit"] for line in measured.lines)
    footer = f"Made by afaf report from {many(len(folders), 'run folder')}; nothing is loaded from elsewhere. {known}"
    return measured_page(measured, "Runs compared", footer, base="first")


def differ_only_in_seed(folders: Sequence[Path]) -> bool:
    """Whether the runs can be averaged. Runs that do not differ, not even in their seed, are refused."""
    settings = [relevant_settings(about) for about in map(_config, folders)]
    seen: dict[str, Path] = {}
    for folder in folders:
        first = seen.setdefault(_identity(folder), folder)
        if first != folder:
            seed = _config(folder)["seed"]
            raise RunError(f"{first} and {folder} do not differ in their seed, {seed}, or in anything else: name one of them")
    return all(one == settings[0] for one in settings)


def without_repeats(folders: Sequence[Path], named: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The runs without repeats, and a note on each one left out. Of identical runs the named ones stay, else the newest."""
    named_places = {folder.resolve() for folder in named}
    alike: dict[str, list[Path]] = {}
    for folder in folders:
        alike.setdefault(_identity(folder), []).append(folder)
    instead: dict[Path, Path] = {}
    for same in alike.values():
        asked = [folder for folder in same if folder.resolve() in named_places]
        kept = asked or [max(same, key=lambda folder: (folder / "results.json").stat().st_mtime)]
        instead |= {folder: kept[0] for folder in same if folder not in kept}
    notes = [f"left out: {old}, a repeat of {new}: stream, method, settings and seed are the same" for old, new in instead.items()]
    return [folder for folder in folders if folder not in instead], notes


def _identity(folder: Path) -> str:
    """A key that is equal for runs that do not differ, not even in their seed."""
    about = _config(folder)
    return repr(sorted({**relevant_settings(about), "seed": about["seed"]}.items(), key=str))


def _config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


def measured_runs(folders: Sequence[Path]) -> Measured:
    """Run folders as lines. The first run of a stream and method is the base; the others name the settings that differ from it."""
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    costs: dict[tuple[str, str, str], Any] = {}
    lines: list[Line] = []
    for folder in folders:
        results, settings = read_results(folder), relevant_settings(_config(folder))
        base = bases.setdefault((results.stream, results.method), settings)
        changed = {name: settings.get(name) for name in {**base, **settings} if settings.get(name) != base.get(name)}
        key = key_of(results.stream, results.method, changed, results.seed)
        if key[:3] not in costs:
            predicted = costs_of_run(folder, results)
            costs[key[:3]] = None if predicted is None else asdict(predicted)
        head = {"stream": results.stream, "method": results.method, "settings": changed, "seed": results.seed}
        more = {"class_names": results.class_names, "costs": costs[key[:3]], "seconds": results.seconds, "device": results.device}
        trained = {"network": results.network, "width": results.width, "commit": results.commit}
        lines.append({**head, **numbers_of(results), **more, **trained})
    return Measured(lines)


def measured_page(measured: Measured, title: str, footer: str, base: str = "preset") -> Page:
    """The page of lines of results; `base` names the runs without changed settings, with which variants are compared."""
    done = [line for line in measured.lines if failure(line) is None]
    shapes = [shape for shape in sorted_shapes(measured) if measured.runs(shape)]
    by_stream = presets_by_stream(measured)
    plain = [shape for here in by_stream.values() for shape in here]
    sections = [Section("headline", "Headline", headline(measured, by_stream, done, shapes))]
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
        Section("variants", "Variants and studies", variants(measured, varied, base), f"Settings that differ from the {base}'s. {PAIRED}"),
        Section("costs", "Costs against dense", costs(measured, by_stream), "The dense network and its training are 1."),
        Section("seeds", "All seeds", all_seeds(measured, shapes) + without_numbers(measured)),
    ]
    devices = sorted({line.get("device", "unknown") for line in measured.lines})
    total = len(measured.lines)
    counted = many(len(done), "run") if len(done) == total else f"{len(done)} of {total} runs have numbers,"
    subtitle = f"{counted} of {many(len(shapes), 'kind')}, measured on {', '.join(devices)}; mean ± standard deviation over seeds"
    return Page(title, subtitle, tuple(sections), footer)


def method_colours(measured: Measured) -> dict[str, str]:
    """The colour of each method, the same on every stream."""
    methods = dict.fromkeys(shape.method for shape in sorted_shapes(measured))
    return dict(zip(methods, cycle(COLOURS), strict=False))


def sorted_shapes(measured: Measured) -> list[Shape]:
    """Sort the shapes in the order of the built-in streams and methods."""
    streams, methods = list(BENCHMARKS), method_names()

    def rank(shape: Shape) -> tuple[int, str, int, str]:
        stream = streams.index(shape.stream) if shape.stream in streams else len(streams)
        method = methods.index(shape.method) if shape.method in methods else len(methods)
        return stream, shape.stream, method, shape.key[2]

    return sorted(measured.shapes(), key=rank)


def presets_by_stream(measured: Measured) -> dict[str, list[Shape]]:
    """Return the shapes of presets that have numbers, by stream."""
    presets: dict[str, list[Shape]] = {}
    for shape in sorted_shapes(measured):
        if not shape.settings and measured.runs(shape):
            presets.setdefault(shape.stream, []).append(shape)
    return presets


def best_of(measured: Measured, shapes: Sequence[Shape]) -> tuple[Shape, Spread] | None:
    """Return the shape with the highest mean ACC."""
    spreads = [(shape, spread) for shape in shapes if (spread := measured.spread(shape, "acc")) is not None]
    return max(spreads, key=lambda pair: pair[1].mean, default=None)


def difference(measured: Measured, a: Shape, b: Shape) -> str:
    """Return ACC of a minus ACC of b over paired seeds, as text."""
    paired = Paired.of(minus(measured.values(a, "acc"), measured.values(b, "acc")).values()) if a != b else None
    return "–" if paired is None else f"{paired} (n {paired.n})"


def headline(measured: Measured, by_stream: Mapping[str, Sequence[Shape]], done: Sequence[Line], shapes: Sequence[Shape]) -> str:
    cards = []
    for stream, here in by_stream.items():
        best = best_of(measured, here)
        if best is not None:
            shape, spread = best
            deviation = "" if spread.std is None else f"± {spread.std:.1f}, "
            rank = f", the highest of {len(here)} methods" if len(here) > 1 else ""
            cards.append((f"{spread.mean:.1f}", f"{shape.method} on {stream}", f"{deviation}{many(spread.n, 'seed')}{rank}"))
    seconds = sum(line.get("seconds", 0) for line in measured.lines)
    others = "" if len(done) == len(measured.lines) else f"of {len(measured.lines)}, the others have no numbers; "
    cards.append((str(len(done)), "run" if len(done) == 1 else "runs", f"{others}{many(len(shapes), 'kind')}, {duration(seconds)}"))
    return number_cards(cards)


def many(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def stream_section(measured: Measured, stream: str, shapes: Sequence[Shape]) -> str:
    rows, marks, series, colours = [], [], [], method_colours(measured)
    best = best_of(measured, shapes)
    for shape in shapes:
        name, colour = shape.method, colours[shape.method]
        spreads = [measured.spread(shape, metric) for metric in ("acc", "bwt", "acc_task_il")]
        to_best = [difference(measured, shape, best[0])] if best and len(shapes) > 1 else []
        rows.append([name, *("–" if s is None else str(s) for s in spreads), measured.count(shape), *to_best])
        dots = [(value, colour, f"{name}, seed {seed}\nACC {value:.2f} %") for seed, value in measured.values(shape, "acc").items()]
        marks.append((name[:18], dots))
        series.append(average_over_time(measured, shape, name, colour))
    drawable = [one for one in series if any(value is not None for value in one.y)]

    def tooltip(one: svg.Series, i: int) -> str:
        return f"{one.name} after task {one.x[i]:g}\nmean accuracy so far: {one.y[i]:.2f} %"

    ticks = drawable[0].x if drawable else None
    drawn = svg.lines(drawable, "ACC over time", tooltip, x_title="after task", y_title="accuracy (%)", y_range=(0, 100), x_ticks=ticks)
    headings = ["method", "ACC", "BWT", "task-IL", "n", *([f"ACC minus that of {best[0].method}"] if best and len(shapes) > 1 else [])]
    return charts(
        chart("", html_table(headings, rows)),
        stack(
            chart("ACC of every seed", svg.dots(marks, f"ACC on {stream}", left=104)),
            chart("mean accuracy on the tasks so far", drawn, below=svg.legend([(one.name, one.colour) for one in drawable])),
        ),
    )


def average_over_time(measured: Measured, shape: Shape, name: str, colour: str) -> svg.Series:
    """Return ACC after each task, with mean and standard deviation over seeds."""
    matrices = [line["R"] for line in measured.runs(shape).values()]
    n_tasks = len(matrices[0]) if matrices else 0
    spreads: list[Spread | None] = []
    for j in range(n_tasks):
        rows = [R[j] for R in matrices if all(value is not None for value in R[j])]
        spreads.append(Spread.of(float(np.mean(row)) for row in rows))
    y = [None if one is None else one.mean for one in spreads]
    return svg.Series(name, colour, list(range(1, n_tasks + 1)), y, [None if one is None else one.std for one in spreads])


def matrices(measured: Measured, shapes: Sequence[Shape]) -> str:
    """Draw the R matrices of each method, folded by stream."""
    parts: list[str] = []
    for stream in dict.fromkeys(shape.stream for shape in shapes):
        boxes = []
        for shape in (shape for shape in shapes if shape.stream == stream):
            lines = list(measured.runs(shape).values())
            for setting, name in (("class-IL", "R"), ("task-IL", "R_task_il")):
                boxes.append(r_matrix(mean_matrix([line[name] for line in lines]), f"{shape.method}, {setting}"))
        parts.append(folded(stream, charts(*boxes), is_open=not parts))
    return "".join(parts)


def confusions(measured: Measured, by_stream: Mapping[str, Sequence[Shape]]) -> str:
    boxes = []
    for stream, shapes in by_stream.items():
        best = best_of(measured, shapes)
        lines = [line for line in measured.runs(best[0]).values() if line.get("confusion")] if best else []
        names = class_names(lines[0]) if lines else None
        if best and names:
            counts = np.sum([line["confusion"] for line in lines], axis=0)
            boxes.append(chart(f"{stream}, {best[0].method}", confusion_map(counts, names)))
    return charts(*boxes)


def variants(measured: Measured, shapes: Sequence[Shape], base: str = "preset") -> str:
    """Return a table per stream, each method's base (its preset) above its variants."""
    boxes = []
    for stream in dict.fromkeys(shape.stream for shape in shapes):
        rows = []
        for shape in with_presets([shape for shape in shapes if shape.stream == stream]):
            spreads = [measured.spread(shape, metric) for metric in ("acc", "bwt", "la", "acc_task_il")]
            if spreads[0] is None:
                continue
            numbers = ["–" if s is None else str(s) for s in spreads]
            name = shape.method + (_changed(shape) or f" ({base})")
            rows.append([name, *numbers, measured.count(shape), difference(measured, shape, Shape(stream, shape.method))])
        boxes.append(chart(stream, html_table(["variant", "ACC", "BWT", "LA", "task-IL", "n", f"ACC minus the {base}'s"], rows)))
    return charts(*boxes)


def with_presets(shapes: Sequence[Shape]) -> list[Shape]:
    """Group the variants on one stream by method, each group after its preset."""
    methods = dict.fromkeys(shape.method for shape in shapes)
    return [one for method in methods for one in (Shape(shapes[0].stream, method), *(shape for shape in shapes if shape.method == method))]


def _changed(shape: Shape) -> str:
    """List the settings that differ from the preset."""
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
            network = ", ".join(str(line.get(name) or "–") for name in ("network", "width"))  # earlier lines lack them
            row = [f"{shape.stream} {shape.method}{_changed(shape)}", network, str(seed), *map(number, values)]
            rows.append([*row, f"{line.get('seconds', 0):.0f}"])
    shown = html_table(["run", "network, width", "seed", "ACC", "BWT", "task-IL", "s"], rows)
    return folded(many(len(rows), "run"), shown)


def without_numbers(measured: Measured) -> str:
    """List the runs that stopped or collapsed, with the reason."""
    rows = [
        [f"{shape.stream} {shape.method}{_changed(shape)}", str(seed), why]
        for shape in sorted_shapes(measured)
        for seed, why in measured.failures(shape).items()
    ]
    shown = html_table(["run", "seed", "why"], rows, words=(2,))
    return folded(f"{many(len(rows), 'run')} without numbers", shown) if rows else ""
