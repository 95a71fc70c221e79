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
from afaf.report import svg
from afaf.report.figures import task_colour
from afaf.report.ledger_facts import UNUSED, USED, candidates_drawn, neuron_layers, owned_layers, reused_from
from afaf.report.measured import Spread, mean_matrix
from afaf.report.page import Page, Section, chart, charts, html_table, number_card
from afaf.report.tensorboard import plain
from afaf.runs.folder import FREE as FREE_SETTINGS
from afaf.runs.folder import read_epochs, read_json
from afaf.runs.job import Job
from afaf.runs.results import Results
from afaf.runs.setup import costs_of
from afaf.storage.model_file import Model

NO_MATTER = {"evaluate.batch_size", *(f"run.{name}" for name in FREE_SETTINGS)}  # settings that no result depends on
UNOWNED, FREE = "var(--unowned)", "var(--free)"
HEADLINE = (
    ("acc", "ACC", "mean accuracy over all tasks in the end, no task label given"),
    ("acc_task_il", "task-IL ACC", "the same with the task given"),
    ("bwt", "BWT", "change on earlier tasks since they were learned"),
    ("la", "LA", "mean accuracy on each task just after it"),
    ("task_id_accuracy", "task found", "images assigned to the right task in the end"),
)


class Runs:
    """The files of some run folders."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = folders
        self.results = [Results.from_dict(read_json(path / "results.json")) for path in folders]
        about = [read_json(path / "config.json") for path in folders]
        check_seeds_of_one({path.name: told for path, told in zip(folders, about, strict=True)})
        self.first = self.results[0]
        self.config: dict[str, Any] = about[0]["config"]
        self.logs = [read_epochs(path / "log.jsonl") for path in folders]
        self.model = Model.load(folders[0] / "model.safetensors")

    @property
    def several(self) -> bool:
        return len(self.results) > 1

    @property
    def task_names(self) -> list[str]:
        return [", ".join(names) for names in self.first.class_names]

    def costs(self) -> Costs | None:
        """Known without training, where the stream can be found again."""
        try:
            return costs_of(Job(self.first.stream, self.first.method, config=self.folders[0] / "config.json"))
        except AfafError:
            return None


def check_seeds_of_one(about: Mapping[str, Mapping[str, Any]]) -> None:
    """Means are over runs that all differ in their seed and in nothing else they learn from; `about` is what each says of itself."""
    (first, told), *others = about.items()
    expected, seeds = that_matters(told), {told["seed"]: first}
    for name, told in others:
        found = that_matters(told)
        for setting in {**expected, **found}:
            here, there = (table.get(setting, "not set") for table in (expected, found))
            if here != there:
                raise RunError(
                    f"these runs differ in more than their seed ({setting} is {here} in {first}, {there} in {name}): "
                    "name one run folder, or one folder of seeds"
                )
        if told["seed"] in seeds:
            same = f"{seeds[told['seed']]} and {name} do not differ in their seed, {told['seed']}"
            raise RunError(f"{same}: name one run folder, or one folder of seeds")
        seeds[told["seed"]] = name


def that_matters(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a run learns from besides its seed, setting by setting, from its config.json."""
    data = {name: told[name] for name in ("stream", "method", "data_digest") if name in told}
    return data | {name: value for name, value in plain(told["config"]).items() if name not in NO_MATTER}


def run_page(folders: Sequence[Path]) -> Page:
    runs = Runs(folders)
    first = runs.first
    seeds = ", ".join(str(run.seed) for run in runs.results)
    several = f"{len(runs.results)} seeds ({seeds}); mean ± standard deviation" if runs.several else f"seed {seeds}"
    draws = bool(candidates_drawn(runs.model))
    sections = (
        Section("headline", "Headline", headline(runs)),
        Section(
            "r-matrix", "Accuracy after each task", r_matrices(runs), "Each row: after a task was learned. Each column: accuracy on a task."
        ),
        Section("over-time", "Each task over time", over_time(runs), "How well each task is remembered as the next ones are learned."),
        Section("confusion", "Confusion by class", confusion(runs), CONFUSION),
        Section("ledger", "Who owns what", ledger(runs), _of_first(runs, _ownership(runs))),
        Section("candidates", "Where classes drew their candidates", candidates(runs), _of_first(runs, CANDIDATES) if draws else ""),
        Section("curves", "Training curves", curves(runs), "Over the outputs in the loss, on training images; one line a task."),
        Section("costs", "Costs against dense", cost_bars(runs), "The dense network and its training are 1."),
        Section("seeds", "All seeds" if runs.several else "This run", seed_table(runs)),
        Section("settings", "Settings", settings(runs)),
    )
    subtitle = f"{len(first.class_names)} tasks, {sum(map(len, first.class_names))} classes, {several}, on {first.device}"
    return Page(
        f"{first.stream}: {first.method}",
        subtitle,
        sections,
        "Made by afaf report from the run's own files; nothing is loaded from elsewhere.",
    )


CONFUSION = "After the last task: of the images of a class (row) the share answered with each class (column). Squares outline tasks."
CANDIDATES = (
    "When a task reuses, each of its classes draws on the neurons that respond to it most. The colour is the task that had fixed the "
    "neuron; grey ones were used by earlier tasks but free, pale ones unused."
)


def _ownership(runs: Runs) -> str:
    if runs.model.learner.ledger.keeps_past:
        return "Connections belong to the task that learned them, for ever."
    return "Connections belong to the task that moved them last: this method lets every task move all of them."


def _of_first(runs: Runs, text: str) -> str:
    return f"{text} Shown for seed {runs.first.seed}." if runs.several else text


def _spread(runs: Runs, name: str) -> Spread | None:
    return Spread.of(value for run in runs.results if (value := getattr(run, name)) is not None)


def headline(runs: Runs) -> str:
    cards = []
    for name, title, explained in HEADLINE:
        found = _spread(runs, name)
        value = "–" if found is None else f"{found.mean:.1f}"
        spread = "" if found is None or found.std is None else f"± {found.std:.1f}; "
        cards.append(number_card(value, title, spread + explained))
    share = runs.first.params / runs.first.dense_params
    cards.append(number_card(f"{share:.3f}", "#params / dense", f"{runs.first.params:,} weights of {runs.first.dense_params:,}"))
    seconds = Spread.of(run.seconds for run in runs.results)
    assert seconds is not None
    cards.append(number_card(f"{seconds.mean:.1f} s", "time", "from loaded data to the last judgement"))
    warnings = list(dict.fromkeys(warning for run in runs.results for warning in run.warnings))
    notes = f"<details><summary>{len(warnings)} warning(s)</summary><ul>{''.join(f'<li>{escape(w)}</li>' for w in warnings)}</ul></details>"
    return f'<div class="cards">{"".join(cards)}</div>' + (notes if warnings else "")


def r_matrices(runs: Runs) -> str:
    boxes = []
    for title, name in (("class-IL: no task label", "R"), ("task-IL: the task is known", "R_task_il")):
        R = mean_matrix([getattr(run, name) for run in runs.results])
        numbers = [str(i + 1) for i in range(len(R))]

        def says(j: int, i: int, value: float) -> str:
            return f"after task {j + 1}, accuracy on task {i + 1}\n({runs.task_names[i]}): {value:.2f} %"

        made = svg.heat_map(R, title, says, rows=numbers, columns=numbers, row_title="after task", column_title="accuracy on task (%)")
        boxes.append(chart(title, made))
    return charts(*boxes)


def over_time(runs: Runs) -> str:
    boxes = []
    for title, name in (("class-IL", "R"), ("task-IL", "R_task_il")):
        matrices = [getattr(run, name) for run in runs.results]
        R = mean_matrix(matrices)
        series = []
        for i in range(len(R)):
            after = list(range(i + 1, len(R) + 1))
            spread = [Spread.of(v for m in matrices if (v := m[j - 1][i]) is not None) for j in after] if runs.several else None
            band = None if spread is None else [None if s is None else s.std for s in spread]
            series.append(svg.Series(f"task {i + 1}", task_colour(i + 1), after, [R[j - 1][i] for j in after], band))

        def says(one: svg.Series, i: int) -> str:
            return f"{one.name} after task {one.x[i]:g}: {one.y[i]:.2f} %"

        ticks = range(1, len(R) + 1)
        made = svg.lines(series, title, says, x_title="after task", y_title="accuracy (%)", y_range=(0, 100), x_ticks=ticks)
        boxes.append(
            chart(title, made, below=svg.legend([(f"{s.name}: {n}", s.colour) for s, n in zip(series, runs.task_names, strict=True)]))
        )
    return charts(*boxes)


def confusion_map(counts: NDArray[Any], class_names: Sequence[Sequence[str]]) -> str:
    """True classes by predicted ones, in percent of each true class."""
    names = [name for task in class_names for name in task]
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def says(j: int, i: int, value: float) -> str:
        return f"{names[j]} answered with {names[i]}: {value:.1f} %\n({int(counts[j, i])} images)"

    short = len(names) <= 16
    return svg.heat_map(
        shares.tolist(),
        "confusion by class",
        says,
        rows=[name[:13] for name in names] if short else [""] * len(names),
        columns=[""] * len(names),
        row_title="true class",
        column_title="answered with, in the same order",
        numbers=len(names) <= 12,
        numbers_from=0.5,
        groups=svg.boundaries([len(task) for task in class_names]),
    )


def confusion(runs: Runs) -> str:
    counts = np.sum([run.confusion for run in runs.results], axis=0)
    return charts(chart("", confusion_map(counts, runs.first.class_names)))


def ledger(runs: Runs) -> str:
    return ledger_charts(runs.model)


def ledger_charts(model: Model) -> str:
    """Who owns what of a model, who fixed which neurons, and what was reused from whom."""
    owned, neurons = [], []
    unit = "weights" if model.learner.ledger.unit == "weight" else "connections"
    for layer in owned_layers(model):
        pieces = [
            svg.Piece(
                f"task {t}", n, task_colour(t), f"W_{layer.l}, {layer.name}\ntask {t} owns {n:,} {unit} ({100 * n / layer.total:.2f} %)"
            )
            for t, n in layer.by_task.items()
        ]
        rest = layer.total - sum(layer.by_task.values())
        pieces.append(
            svg.Piece("nobody", rest, UNOWNED, f"W_{layer.l}, {layer.name}\n{rest:,} {unit} unowned ({100 * rest / layer.total:.1f} %)")
        )
        owned.append((f"W_{layer.l} {layer.name.split(' → ')[1]}", [_scaled(piece, layer.total) for piece in pieces]))
    for group in neuron_layers(model):
        pieces = [
            svg.Piece(f"task {t}", n, task_colour(t), f"{group.name}: task {t} fixed {n} of {group.total} neurons")
            for t, n in group.fixed.items()
        ]
        pieces.append(svg.Piece("free", group.used, FREE, f"{group.name}: {group.used} of {group.total} neurons used, still free"))
        unused = group.total - group.used - sum(group.fixed.values())
        pieces.append(svg.Piece("unused", unused, UNOWNED, f"{group.name}: {unused} of {group.total} neurons unused"))
        neurons.append((group.name, [_scaled(piece, group.total) for piece in pieces]))
    tasks = sorted(model.learner.classes_of)
    colours = [(f"task {t}", task_colour(t)) for t in tasks]
    return charts(
        chart(
            f"{unit} by owner", svg.stacked_bars(owned, f"{unit} by owner", total=1.0), below=svg.legend([*colours, ("nobody", UNOWNED)])
        ),
        chart(
            "neurons by the task that fixed them",
            svg.stacked_bars(neurons, "neurons fixed", total=1.0),
            below=svg.legend([*colours, ("used, free", FREE), ("unused", UNOWNED)]),
        ),
        chart(
            "what was reused from whom",
            _reuse_map(model),
            below="<p class='legend'>connections that start from neurons an earlier task fixed</p>",
        ),
    )


def _scaled(piece: svg.Piece, total: int) -> svg.Piece:
    return svg.Piece(piece.label, piece.amount / max(total, 1), piece.colour, piece.says)


def _reuse_map(model: Model) -> str:
    found = reused_from(model)
    tasks, sources = sorted(found)[1:], sorted(found)[:-1]
    high = max((n for counts in found.values() for n in counts.values()), default=0)
    if not high:
        return ""
    rows: list[list[float | None]] = [[found[t].get(s, 0) if s < t else None for s in sources] for t in tasks]

    def says(j: int, i: int, value: float) -> str:
        return f"task {tasks[j]}: {value:,.0f} connections start\nfrom neurons fixed by task {sources[i]}"

    return svg.heat_map(
        rows,
        "reused from",
        says,
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
        return "<p>No task of this run drew candidates: the method does not reuse, or no task was to.</p>"
    boxes = []
    for layer in dict.fromkeys(one.layer for one in drawn):
        rows = []
        for one in (one for one in drawn if one.layer == layer):
            total = sum(one.origins.values())
            pieces = []
            for origin in sorted(one.origins, key=lambda t: (t <= 0, -t if t <= 0 else t)):
                whose = {USED: "used before, free", UNUSED: "unused"}.get(origin, f"fixed by task {origin}")
                colour = {USED: FREE, UNUSED: UNOWNED}.get(origin) or task_colour(origin)
                n = one.origins[origin]
                pieces.append(
                    svg.Piece(
                        whose, n / max(total, 1), colour, f"{one.class_name} (task {one.task}), {layer}\n{n} of {total} candidates: {whose}"
                    )
                )
            rows.append((f"{one.class_name[:11]} ({one.task})", pieces))
        boxes.append(chart(f"candidates in {layer}", svg.stacked_bars(rows, f"candidates in {layer}", total=1.0)))
    tasks = sorted(runs.model.learner.classes_of)
    colours = svg.legend([*((f"task {t}", task_colour(t)) for t in tasks), ("used, free", FREE), ("unused", UNOWNED)])
    return charts(*boxes) + colours


def curves(runs: Runs) -> str:
    boxes = []
    for title, name, y_range in (("loss", "loss", None), ("accuracy on training images (%)", "accuracy", (0.0, 100.0))):
        series = []
        for task in sorted({key[0] for log in runs.logs for key in log}):
            keys = sorted({key for log in runs.logs for key in log if key[0] == task})
            found = [Spread.of(log[key][name] for log in runs.logs if key in log) for key in keys]
            means = [None if one is None else one.mean for one in found]
            series.append(svg.Series(f"task {task}", task_colour(task), list(range(1, len(keys) + 1)), means))

        def says(one: svg.Series, i: int, title: str = title) -> str:
            return f"{one.name}, epoch {one.x[i]:g}\n{title}: {one.y[i]:.3f}"

        made = svg.lines(series, title, says, x_title="epoch", y_title=title, y_range=y_range, marks=False)
        boxes.append(chart(title, made, below=svg.legend([(one.name, one.colour) for one in series])))
    return charts(*boxes)


def cost_bars(runs: Runs) -> str:
    share = runs.first.params / runs.first.dense_params
    rows = [("#params", share, "var(--accent)", f"{runs.first.params:,} of {runs.first.dense_params:,} weights")]
    found = runs.costs()
    if found is not None:
        named = (
            ("FLOPs (paper)", found.paper_flops_ratio, "training by the paper's estimate"),
            ("FLOPs (counted)", found.counted_flops_ratio, "training, over live connections only"),
            ("FLOPs, answer", found.inference_flops_ratio, f"one answer: {found.inference_flops:,} multiplications and additions"),
        )
        rows += [(name, ratio, "var(--accent)", f"{says}: {ratio:.4f} of dense") for name, ratio, says in named if ratio is not None]
    made = svg.bars(rows, "costs against dense", high=max(1.0, *(value for _, value, _, _ in rows)), mark=1.0)
    below = f'<p class="legend">kept between tasks besides the weights: {found.kept_bytes:,} bytes</p>' if found is not None else ""
    return charts(chart("", made, below=below))


def seed_table(runs: Runs) -> str:
    names = ["acc", "bwt", "la", "acc_task_il", "task_id_accuracy"]
    rows = []
    for run in runs.results:
        values = [getattr(run, name) for name in names]
        rows.append([str(run.seed), *("–" if value is None else f"{value:.2f}" for value in values), f"{run.seconds:.0f}"])
    if runs.several:
        spreads = [_spread(runs, name) for name in names]
        rows.append(["mean", *("–" if s is None else f"{s.mean:.2f}" for s in spreads), ""])
        rows.append(["std", *("–" if s is None or s.std is None else f"{s.std:.2f}" for s in spreads), ""])
    return chart("", html_table(["seed", "ACC", "BWT", "LA", "task-IL", "task id", "s"], rows, total_rows=2 if runs.several else 0))


def settings(runs: Runs) -> str:
    """Every setting, folded away."""
    rows = []
    for section, values in runs.config.items():
        for name, value in (values or {}).items():
            rows.append([f"{section}.{name}", json.dumps(value)])
    shown = html_table(["setting", "value"], rows, words=(1,))
    return f"<details><summary>{len(rows)} settings</summary>{shown}</details>"
