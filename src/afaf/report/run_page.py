"""The page of a run, or of several runs that differ in their seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.costing.predict import Costs
from afaf.errors import AfafError, RunError
from afaf.network.zoo import width_of
from afaf.report import svg
from afaf.report.figures import task_colour
from afaf.report.ledger_facts import UNUSED, USED, candidates_drawn, neuron_layers, owned_layers, reused_from
from afaf.report.measured import mean_matrix
from afaf.report.page import Page, Section, chart, charts, commits, folded, html_table, number, number_cards
from afaf.report.tensorboard import plain
from afaf.runs.folder import FREE as FREE_SETTINGS
from afaf.runs.folder import read_epochs, read_json, read_results, report_command
from afaf.runs.job import Job
from afaf.runs.results import Results, Row, Spread, Summary
from afaf.runs.setup import costs_of
from afaf.storage.model_file import Model
from afaf.sweeps.outcome import sweep_of

UNOWNED, FREE = "var(--unowned)", "var(--free)"
HEADLINE = (
    ("acc", "ACC", "mean accuracy over all tasks at the end, without task labels"),
    ("acc_task_il", "task-IL ACC", "the same with task labels"),
    ("bwt", "BWT", "change on earlier tasks since they were learned"),
    ("la", "LA", "mean accuracy on each task just after it"),
    ("task_id_accuracy", "task found", "images assigned to the right task at the end"),
)


class Runs:
    """The files of one or more run folders."""

    def __init__(self, folders: Sequence[Path]):
        self.folders, sweep = folders, sweep_of(folders[0])
        if sweep is not None and not (folders[0] / "model.safetensors").exists():
            raise RunError(f"{folders[0]} is a trial, kept without its model: {report_command(sweep)} shows all trials")
        self.results = [read_results(path) for path in folders]
        self.first = self.results[0]
        self.config: dict[str, Any] = read_json(folders[0] / "config.json")["config"]
        self.logs = [read_epochs(path / "log.jsonl") for path in folders]
        self.model = Model.load(folders[0] / "model.safetensors")

    @property
    def several(self) -> bool:
        return len(self.results) > 1

    @property
    def task_names(self) -> list[str]:
        return [", ".join(names) for names in self.first.class_names]


def costs_of_run(folder: Path, results: Results) -> Costs | None:
    """The predicted costs; None if the stream cannot be opened, or if the network is a function, which reading a run must not call."""
    config = read_json(folder / "config.json")
    if ":" in str(config["config"].get("network", {}).get("name")):
        return None
    try:
        return costs_of(Job(results.stream, results.method, config=folder / "config.json"))
    except AfafError:
        return None


def relevant_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a config.json that influence the results, without the seed."""
    data = {name: config[name] for name in ("stream", "method", "data_digest") if name in config}
    return data | {name: value for name, value in plain(config["config"]).items() if name not in FREE_SETTINGS}


def run_page(folders: Sequence[Path]) -> Page:
    runs = Runs(folders)
    first = runs.first
    seeds = ", ".join(str(run.seed) for run in runs.results)
    several = f"{len(runs.results)} seeds ({seeds}); mean ± standard deviation" if runs.several else f"seed {seeds}"
    counts = np.sum([run.confusion for run in runs.results], axis=0)
    draws = bool(candidates_drawn(runs.model))
    ownership = "permanently to the task that learned them."
    if not runs.model.learner.ledger.keeps_past:
        ownership = "to the task that moved them last: this method lets every task move all of them."
    sections = (
        Section("headline", "Headline", headline(runs)),
        Section(
            "r-matrix", "Accuracy after each task", r_matrices(runs), "Each row: after a task was learned. Each column: accuracy on a task."
        ),
        Section("over-time", "Each task over time", over_time(runs), "How well each task is remembered as the next ones are learned."),
        Section("confusion", "Confusion by class", charts(chart("", confusion_map(counts, first.class_names))), CONFUSION),
        Section(
            "ledger", "Owners of connections and neurons", ledger_charts(runs.model), _of_first(runs, f"Connections belong {ownership}")
        ),
        Section("candidates", "Where classes drew their candidates", candidates(runs), _of_first(runs, CANDIDATES) if draws else ""),
        Section("curves", "Training curves", curves(runs), "Over the outputs in the loss, on training images; one line a task."),
        Section("costs", "Costs against dense", cost_bars(runs), "The dense network and its training are 1."),
        Section("seeds", "All seeds" if runs.several else "This run", seed_table(runs)),
        Section("settings", "Settings", settings(runs)),
    )
    spec = runs.model.learner.network.spec
    sizes = f"{len(first.class_names)} tasks, {sum(map(len, first.class_names))} classes, network {spec.name} of width {width_of(spec)}"
    return Page(
        f"{first.stream}: {first.method}",
        f"{sizes}, {several}, on {first.device}",
        sections,
        f"Made by afaf report from the run's own files; nothing is loaded from elsewhere. {commits(run.commit for run in runs.results)}",
    )


CONFUSION = "After the last task: of the images of a class (row) the share answered with each class (column). Squares outline tasks."
CANDIDATES = (
    "When a task reuses, each of its classes draws on the neurons that respond to it most. The colour is the task that had fixed the "
    "neuron; grey ones were used by earlier tasks but free, pale ones unused."
)


def _of_first(runs: Runs, text: str) -> str:
    return f"{text} Shown for seed {runs.first.seed}." if runs.several else text


def headline(runs: Runs) -> str:
    cards = []
    for name, title, explained in HEADLINE:
        spread = Summary(runs.results).spread(name)
        value = "–" if spread is None else f"{spread.mean:.1f}"
        deviation = "" if spread is None or spread.std is None else f"± {spread.std:.1f}; "
        cards.append((value, title, deviation + explained))
    share = runs.first.params / runs.first.dense_params
    cards.append((f"{share:.3f}", "#params / dense", f"{runs.first.params:,} weights of {runs.first.dense_params:,}"))
    seconds = float(np.mean([run.seconds for run in runs.results]))
    cards.append((f"{seconds:.1f} s", "time", "training and evaluation, without loading the data"))
    warnings = list(dict.fromkeys(warning for run in runs.results for warning in run.warnings))
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return number_cards(cards) + (folded(f"{len(warnings)} warning(s)", f"<ul>{notes}</ul>") if warnings else "")


def r_matrices(runs: Runs) -> str:
    boxes = []
    for title, name in (("class-IL: no task label", "R"), ("task-IL: with task labels", "R_task_il")):
        R = mean_matrix([getattr(run, name) for run in runs.results])
        boxes.append(r_matrix(R, title, [f"\n({names})" for names in runs.task_names]))
    return charts(*boxes)


def r_matrix(R: list[Row], title: str, tasks: Sequence[str] | None = None) -> str:
    """Draw one R matrix; `tasks` is added to the tooltips."""
    numbers = [str(i + 1) for i in range(len(R))]

    def tooltip(j: int, i: int, value: float) -> str:
        return f"{title}\nafter task {j + 1}, accuracy on task {i + 1}{tasks[i] if tasks else ''}: {value:.2f} %"

    return chart(title, svg.heat_map(R, title, tooltip, rows=numbers, columns=numbers, row_title="after task", column_title="task (%)"))


def accuracy_series(runs: Runs, name: str) -> list[svg.Series]:
    """The accuracy on each task after it and each later task, averaged over seeds; `name` is the R matrix."""
    matrices = [getattr(run, name) for run in runs.results]
    R, series = mean_matrix(matrices), []
    for i in range(len(R)):
        after = list(range(i + 1, len(R) + 1))
        spreads = [Spread.of(v for m in matrices if (v := m[j - 1][i]) is not None) for j in after] if runs.several else None
        band = None if spreads is None else [None if one is None else one.std for one in spreads]
        series.append(svg.Series(f"task {i + 1}", task_colour(i + 1), after, [R[j - 1][i] for j in after], band))
    return series


def over_time(runs: Runs) -> str:
    boxes = []
    for title, name in (("class-IL", "R"), ("task-IL", "R_task_il")):
        series = accuracy_series(runs, name)

        def tooltip(one: svg.Series, i: int) -> str:
            return f"{one.name} after task {one.x[i]:g}: {one.y[i]:.2f} %"

        ticks = range(1, len(series) + 1)
        made = svg.lines(series, title, tooltip, x_title="after task", y_title="accuracy (%)", y_range=(0, 100), x_ticks=ticks)
        names = [(f"{s.name}: {n}", s.colour) for s, n in zip(series, runs.task_names, strict=True)]
        boxes.append(chart(title, made, below=svg.legend(names)))
    return charts(*boxes)


def confusion_map(counts: NDArray[Any], class_names: Sequence[Sequence[str]]) -> str:
    """Draw true by predicted classes, in percent of each true class."""
    names = [name for task in class_names for name in task]
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def tooltip(j: int, i: int, value: float) -> str:
        return f"{names[j]} answered with {names[i]}: {value:.1f} %\n({int(counts[j, i])} images)"

    short = len(names) <= 16
    return svg.heat_map(
        shares.tolist(),
        "confusion by class",
        tooltip,
        rows=[name[:13] for name in names] if short else [""] * len(names),
        columns=[""] * len(names),
        row_title="true class",
        column_title="answered with, in the same order",
        numbers=len(names) <= 12,
        numbers_from=0.5,
        groups=svg.boundaries([len(task) for task in class_names]),
    )


def ledger_charts(model: Model) -> str:
    """Draw the owners of a model's connections, the tasks that fixed its neurons, and the reuse between tasks."""
    owned, neurons = [], []
    unit = "weights" if model.learner.ledger.unit == "weight" else "connections"
    for layer in owned_layers(model):
        about = f"W_{layer.l}, {layer.name}\n"
        pieces = [
            svg.Piece(n, task_colour(t), f"{about}task {t} owns {n:,} {unit} ({100 * n / layer.total:.2f} %)")
            for t, n in layer.by_task.items()
        ]
        rest = layer.total - sum(layer.by_task.values())
        pieces.append(svg.Piece(rest, UNOWNED, f"{about}{rest:,} {unit} unowned ({100 * rest / layer.total:.1f} %)"))
        owned.append((f"W_{layer.l} {layer.name.split(' → ')[1]}", pieces))
    for group in neuron_layers(model):
        pieces = [
            svg.Piece(n, task_colour(t), f"{group.name}: task {t} fixed {n} of {group.total} neurons") for t, n in group.fixed.items()
        ]
        pieces.append(svg.Piece(group.used, FREE, f"{group.name}: {group.used} of {group.total} neurons used, still free"))
        unused = group.total - group.used - sum(group.fixed.values())
        pieces.append(svg.Piece(unused, UNOWNED, f"{group.name}: {unused} of {group.total} neurons unused"))
        neurons.append((group.name, pieces))
    tasks = sorted(model.learner.classes_of)
    colours = [(f"task {t}", task_colour(t)) for t in tasks]
    return charts(
        chart(f"{unit} by owner", svg.stacked_bars(owned, f"{unit} by owner"), below=svg.legend([*colours, ("nobody", UNOWNED)])),
        chart(
            "neurons by the task that fixed them",
            svg.stacked_bars(neurons, "neurons fixed"),
            below=svg.legend([*colours, ("used, free", FREE), ("unused", UNOWNED)]),
        ),
        chart(
            "reuse between tasks",
            _reuse_map(model),
            below="<p class='legend'>connections that start from neurons an earlier task fixed</p>",
        ),
    )


def _reuse_map(model: Model) -> str:
    reused = reused_from(model)
    tasks, sources = sorted(reused)[1:], sorted(reused)[:-1]
    high = max((n for counts in reused.values() for n in counts.values()), default=0)
    if not high:
        return ""
    rows: list[list[float | None]] = [[reused[t].get(s, 0) if s < t else None for s in sources] for t in tasks]

    def tooltip(j: int, i: int, value: float) -> str:
        return f"task {tasks[j]}: {value:,.0f} connections start\nfrom neurons fixed by task {sources[i]}"

    return svg.heat_map(
        rows,
        "reused from",
        tooltip,
        rows=[str(t) for t in tasks],
        columns=[str(t) for t in sources],
        row_title="task",
        column_title="from neurons of task",
        high=high,
        numbers=False,
    )


def candidates(runs: Runs) -> str:
    drawn = candidates_drawn(runs.model)
    if not drawn:
        return "<p>No task of this run drew candidates: the method does not reuse, or reuse is off for all tasks.</p>"
    boxes = []
    for layer in dict.fromkeys(one.layer for one in drawn):
        rows = []
        for one in (one for one in drawn if one.layer == layer):
            total = sum(one.origins.values())
            pieces = []
            for origin in sorted(one.origins, key=lambda t: (t <= 0, -t if t <= 0 else t)):
                words = {USED: "used before, free", UNUSED: "unused"}.get(origin, f"fixed by task {origin}")
                colour = {USED: FREE, UNUSED: UNOWNED}.get(origin) or task_colour(origin)
                n = one.origins[origin]
                tooltip = f"{one.class_name} (task {one.task}), {layer}\n{n} of {total} candidates: {words}"
                pieces.append(svg.Piece(n, colour, tooltip))
            rows.append((f"{one.class_name[:11]} ({one.task})", pieces))
        boxes.append(chart(f"candidates in {layer}", svg.stacked_bars(rows, f"candidates in {layer}")))
    tasks = sorted(runs.model.learner.classes_of)
    colours = svg.legend([*((f"task {t}", task_colour(t)) for t in tasks), ("used, free", FREE), ("unused", UNOWNED)])
    return charts(*boxes) + colours


def curve_series(runs: Runs, name: str) -> list[svg.Series]:
    """Loss or accuracy on training images by epoch, a line for each task, averaged over seeds."""
    series = []
    for task in sorted({key[0] for log in runs.logs for key in log}):
        keys = sorted({key for log in runs.logs for key in log if key[0] == task})
        means = [float(np.mean([log[key][name] for log in runs.logs if key in log])) for key in keys]
        series.append(svg.Series(f"task {task}", task_colour(task), list(range(1, len(keys) + 1)), means))
    return series


def curves(runs: Runs) -> str:
    boxes = []
    for title, name, y_range in (("loss", "loss", None), ("accuracy on training images (%)", "accuracy", (0.0, 100.0))):
        series = curve_series(runs, name)

        def tooltip(one: svg.Series, i: int, title: str = title) -> str:
            return f"{one.name}, epoch {one.x[i]:g}\n{title}: {one.y[i]:.3f}"

        made = svg.lines(series, title, tooltip, x_title="epoch", y_title=title, y_range=y_range, marks=False)
        boxes.append(chart(title, made, below=svg.legend([(one.name, one.colour) for one in series])))
    return charts(*boxes)


def cost_bars(runs: Runs) -> str:
    share = runs.first.params / runs.first.dense_params
    rows = [("#params", share, "var(--accent)", f"{runs.first.params:,} of {runs.first.dense_params:,} weights")]
    costs = costs_of_run(runs.folders[0], runs.first)
    if costs is not None:
        ratios = (
            ("FLOPs (paper)", costs.paper_flops_ratio, "training by the paper's estimate"),
            ("FLOPs (counted)", costs.counted_flops_ratio, "training, over live connections only"),
            ("FLOPs, answer", costs.inference_flops_ratio, f"one answer: {costs.inference_flops:,} multiplications and additions"),
        )
        rows += [(name, ratio, "var(--accent)", f"{tooltip}: {ratio:.4f} of dense") for name, ratio, tooltip in ratios if ratio is not None]
    made = svg.bars(rows, "costs against dense", high=max(1.0, *(value for _, value, _, _ in rows)), mark=1.0)
    below = f'<p class="legend">kept between tasks besides the weights: {costs.kept_bytes:,} bytes</p>' if costs is not None else ""
    return charts(chart("", made, below=below))


def seed_table(runs: Runs) -> str:
    names = ["acc", "bwt", "la", "acc_task_il", "task_id_accuracy"]
    rows = [[str(run.seed), *(number(getattr(run, name)) for name in names), f"{run.seconds:.0f}"] for run in runs.results]
    if runs.several:
        summary = Summary(runs.results)
        rows += [[title, *(number(values[name]) for name in names), ""] for title, values in (("mean", summary.mean), ("std", summary.std))]
    return chart("", html_table(["seed", "ACC", "BWT", "LA", "task-IL", "task id", "s"], rows, total_rows=2 if runs.several else 0))


def settings(runs: Runs) -> str:
    """Return all settings, folded."""
    rows = [[f"{section}.{name}", json.dumps(value)] for section, values in runs.config.items() for name, value in (values or {}).items()]
    return folded(f"{len(rows)} settings", html_table(["setting", "value"], rows, words=(1,)))
