"""The page of a sweep: its best trial, the importance of each setting, all trials as parallel coordinates and as a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from afaf.errors import RunError
from afaf.report import svg
from afaf.report.page import Page, Section, chart, charts, html_table, number_cards
from afaf.runs.folder import read_json

STATES = {"complete": "complete", "pruned": "stopped early", "fail": "failed", "running": "running"}
PARALLEL = "A line for each complete trial, through its value of each setting, to its objective on the right; the darker, the better."
STOPPED = "Trials that were stopped early have the objective of the tasks they saw."


def sweep_page(folder: Path) -> Page:
    table = read_json(folder / "sweep.json")
    try:
        about, trials, importance = table["about"], table["trials"], table["importance"]
        complete = [trial for trial in trials if trial["state"] == "complete" and trial["value"] is not None]
        sections = (
            Section("headline", "Headline", headline(trials, complete, table.get("chosen"))),
            Section("importance", "Importance of the settings", importances(importance), "Share of the objective's variance (fANOVA)."),
            Section("parallel", "All settings at once", parallel(complete, about["space"]), PARALLEL),
            Section("progress", "Best trial so far", progress(complete), "The objective of the best of the trials up to each one."),
            Section("trials", "All trials", all_trials(trials), STOPPED),
        )
        subtitle = f"{about['objective']}; seed {about['seed']}"
        title = f"{about['stream']}: a sweep of {about['method']}"
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / 'sweep.json'} is damaged: {error!r} is missing or has a wrong type") from None
    return Page(title, subtitle, sections, "Made by afaf report from sweep.json alone; nothing is loaded from elsewhere.")


def headline(trials: list[dict[str, Any]], complete: list[dict[str, Any]], chosen: int | None) -> str:
    states = [trial["state"] for trial in trials]
    counted = ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)
    cards = [(str(len(trials)), "trials", counted)]
    if complete:
        best = next((trial for trial in complete if trial["number"] == chosen), None) or max(complete, key=lambda trial: trial["value"])
        cards.insert(0, (f"{best['value']:.1f}", "best", f"% of validation images, trial {best['number']}; best.toml has its settings"))
    return number_cards(cards)


def importances(importance: dict[str, float]) -> str:
    rows = [(_short(name)[:18], value, "var(--accent)", f"{name}: {value:.3f}") for name, value in importance.items()]
    return charts(chart("", svg.bars(rows, "importance of the settings", high=1.0, left=112) if rows else ""))


def parallel(complete: list[dict[str, Any]], space: dict[str, Any]) -> str:
    values = [trial["value"] for trial in complete]
    if not values:
        return ""
    low, high = min(values), max(values)
    axes = [(_short(name), *_ends(values)) for name, values in space.items()] + [("objective", f"{low:.1f}", f"{high:.1f}")]
    lines = []
    for trial in sorted(complete, key=lambda trial: trial["value"]):
        share = (trial["value"] - low) / (high - low or 1)
        places = [_place(space[name], trial["settings"].get(name)) for name in space]
        settings = "\n".join(f"{name} = {_shown(value)}" for name, value in trial["settings"].items())
        lines.append(([*places, share], share, f"trial {trial['number']}: {trial['value']:.2f} %\n{settings}"))
    return charts(chart("", svg.parallel_coordinates(axes, lines, "all trials")))


def _ends(values: dict[str, Any]) -> tuple[str, str]:
    if values["choices"]:
        return _shown(values["choices"][0]), _shown(values["choices"][-1])
    return f"{values['low']:g}", f"{values['high']:g}"


def _place(values: dict[str, Any], value: Any) -> float | None:
    """The place of a value between the ends of its range, in 0..1; None for a value that is not there."""
    choices, low, high = values["choices"], values["low"], values["high"]
    if choices:
        return choices.index(value) / max(len(choices) - 1, 1) if value in choices else None
    if value is None:
        return None
    if values["log"]:
        return math.log(max(value, low) / low) / math.log(high / low)
    return float((value - low) / (high - low))


def progress(complete: list[dict[str, Any]]) -> str:
    numbers = [trial["number"] for trial in complete]
    best = [max(one["value"] for one in complete[: i + 1]) for i in range(len(complete))]
    series = [svg.Series("best so far", "var(--accent)", numbers, best)]

    def tooltip(one: svg.Series, i: int) -> str:
        return f"up to trial {one.x[i]:g}: {one.y[i]:.2f} %"

    return charts(chart("", svg.lines(series, "best trial so far", tooltip, x_title="trial", y_title="objective (%)")))


def all_trials(trials: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for trial in trials for name in trial["settings"]))
    rows = []
    for trial in sorted(trials, key=lambda trial: (trial["state"] != "complete", -(trial["value"] or 0))):
        state = STATES.get(trial["state"], trial["state"])
        ended = f"stopped after task {len(trial['steps'])}" if trial["state"] == "pruned" else trial["why"] or state
        value = "–" if trial["value"] is None else f"{trial['value']:.2f}"
        seconds = "–" if trial["seconds"] is None else f"{trial['seconds']:.1f}"
        rows.append([str(trial["number"]), value, *(_shown(trial["settings"].get(name, "")) for name in names), seconds, ended])
    table = html_table(["trial", "%", *map(_short, names), "s", "state"], rows, words=(len(names) + 3,))
    return chart("", f'<div style="overflow-x: auto">{table}</div>')


def _short(name: str) -> str:
    """The name of a setting without its section."""
    return name.partition(".")[2]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
