"""The page of a sweep: its best trial, the importance of each setting, all trials as parallel coordinates and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from afaf.checked import build
from afaf.report import svg
from afaf.report.page import Page, Section, chart, charts, html_table, number, number_cards
from afaf.sweeps.outcome import STATES, Outcome, TrialRecord, read_outcome, shown
from afaf.sweeps.space import Range, Space

PARALLEL = "A line for each complete trial, through its value of each setting, to its objective on the right; the darker, the better."
STOPPED = "Trials that were stopped early have the objective of the tasks they saw."


def sweep_page(folder: Path) -> Page:
    about, outcome = read_outcome(folder)
    sections = (
        Section("headline", "Headline", headline(outcome)),
        Section("importance", "Importance of the settings", importances(outcome.importance), "Share of the objective's variance (fANOVA)."),
        Section("parallel", "All settings at once", parallel(outcome.complete, build(dict[str, Range], about["space"], "space")), PARALLEL),
        Section("progress", "Best trial so far", progress(outcome.complete), "The objective of the best of the trials up to each one."),
        Section("trials", "All trials", all_trials(outcome.trials), STOPPED),
    )
    subtitle = f"{about['objective']}; seed {about['seed']}"
    title = f"{about['stream']}: a sweep of {about['method']}"
    return Page(title, subtitle, sections, "Made by afaf report from sweep.json alone; nothing is loaded from elsewhere.")


def headline(outcome: Outcome) -> str:
    cards = [(str(len(outcome.trials)), "trials", outcome.counts)]
    best = outcome.best
    if best is not None and best.value is not None:  # None: it diverged
        cards.insert(0, (f"{best.value:.1f}", "best", f"% of validation images, trial {best.number}; best.toml has its settings"))
    return number_cards(cards)


def importances(importance: dict[str, float]) -> str:
    rows = [(_short(name)[:18], value, "var(--accent)", f"{name}: {value:.3f}") for name, value in importance.items()]
    return charts(chart("", svg.bars(rows, "importance of the settings", high=1.0, left=112) if rows else ""))


def parallel(complete: Sequence[TrialRecord], space: Space) -> str:
    values = [trial.value for trial in complete if trial.value is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    axes = [(_short(name), shown(one.ends[0]), shown(one.ends[-1])) for name, one in space.items()]
    axes.append(("objective", f"{low:.1f}", f"{high:.1f}"))
    lines = []
    for value, trial in sorted(zip(values, complete, strict=True), key=lambda pair: pair[0]):
        share = (value - low) / (high - low or 1)
        places = [_place(one, trial.settings.get(name)) for name, one in space.items()]
        settings = "\n".join(f"{name} = {shown(value)}" for name, value in trial.settings.items())
        lines.append(([*places, share], share, f"trial {trial.number}: {value:.2f} %\n{settings}"))
    return charts(chart("", svg.parallel_coordinates(axes, lines, "all trials")))


def _place(values: Range, value: Any) -> float | None:
    """The position of a value between the ends of its range, in 0..1; None without a value."""
    choices, low, high = values.choices, values.low, values.high
    if choices:
        return choices.index(value) / max(len(choices) - 1, 1) if value in choices else None
    if value is None or low is None or high is None:
        return None
    return math.log(max(value, low) / low) / math.log(high / low) if values.log else float((value - low) / (high - low))


def progress(complete: Sequence[TrialRecord]) -> str:
    best = list(accumulate((trial.value or 0.0 for trial in complete), max))
    series = [svg.Series("best so far", "var(--accent)", [trial.number for trial in complete], best)]

    def tooltip(one: svg.Series, i: int) -> str:
        return f"up to trial {one.x[i]:g}: {one.y[i]:.2f} %"

    return charts(chart("", svg.lines(series, "best trial so far", tooltip, x_title="trial", y_title="objective (%)")))


def all_trials(trials: Sequence[TrialRecord]) -> str:
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    rows = []
    for trial in sorted(trials, key=lambda trial: (trial.state != "complete", -(trial.value or 0))):
        ended = f"stopped after task {len(trial.steps)}" if trial.state == "pruned" else trial.why or STATES.get(trial.state, trial.state)
        seconds = "–" if trial.seconds is None else f"{trial.seconds:.1f}"
        rows.append([str(trial.number), number(trial.value), *(shown(trial.settings.get(name, "")) for name in names), seconds, ended])
    table = html_table(["trial", "%", *map(_short, names), "s", "state"], rows, words=(len(names) + 3,))
    return chart("", f'<div style="overflow-x: auto">{table}</div>')


def _short(name: str) -> str:
    """The name of a setting without its section."""
    return name.partition(".")[2]
