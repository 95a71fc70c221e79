"""A model file as data and as a page: classes by task and date, capacity, sizes, owners of connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from afaf.lifelong.model import Lifelong
from afaf.report.ledger_facts import neuron_layers, owned_layers
from afaf.report.page import Page, Section, html_table, number_cards
from afaf.report.run_page import ledger_charts
from afaf.version import __version__


def model_facts(path: Path, model: Lifelong) -> dict[str, Any]:
    """Return all that `afaf inspect` shows."""
    life, spec, removed = model.life, model.spec, set(model.life.removed)
    first, tasks = 0, []
    for number, (labels, note) in enumerate(zip(life.labels, life.tasks, strict=True), 1):
        names = [str(label) + (" (removed)" if first + k in removed else "") for k, label in enumerate(labels)]
        first += len(labels)
        about = {"learned": note.learned, "images": note.images, "held_out": note.held_out}
        tasks.append({"task": number, "classes": names, **about, "accuracy": note.accuracy, "temperature": note.temperature})
    layers = [
        {"layer": n.name, "neurons": n.total, "fixed": sum(n.fixed.values()), "used_free": n.used} for n in neuron_layers(model.model)
    ]
    joins = [{"connections": f"W_{o.l} {o.name}", "total": o.total, "owned": sum(o.by_task.values())} for o in owned_layers(model.model)]
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "method": model.model.method,
        "network": spec.name,
        "input_shape": list(spec.input_shape),
        "seed": model.learner.seed,
        "classes": len(life.known),
        "tasks": tasks,
        "max_tasks": life.max_tasks,
        "max_classes": life.max_classes,
        "tasks_that_fit": model.room() if model.learns else 0,
        "weights": model.learner.params,
        "dense_weights": spec.dense_params,
        "temperature": round(model.temperature, 4),
        "layers": layers,
        "connections": joins,
    }


def model_page(path: Path, model: Lifelong) -> Page:
    facts = model_facts(path, model)
    numbers = (
        (str(facts["classes"]), "classes", f"in {len(facts['tasks'])} tasks"),
        (str(facts["tasks_that_fit"]), "tasks still fit", f"made for {facts['max_tasks']}"),
        (f"{facts['bytes'] / 1e6:.1f} MB", "file", f"{facts['weights']:,} of {facts['dense_weights']:,} weights"),
        (f"{facts['temperature']:.2f}", "temperature", "of its probabilities"),
    )
    sections = (
        Section("numbers", "The model", number_cards(numbers)),
        Section("classes", "Classes by task", html_table(TASK_HEADINGS, task_rows(facts), words=(1, 2))),
        Section("capacity", "Capacity", html_table(LAYER_HEADINGS, layer_rows(facts), words=(0,))),
        Section("ledger", "Who owns what", ledger_charts(model.model), "Each colour is a task. Hover over anything to see its value."),
    )
    return Page(path.name, f"{facts['method']}, {facts['network']}, seed {facts['seed']}", sections, f"afaf {__version__}")


TASK_HEADINGS = ["task", "learned (UTC)", "classes", "images", "held-out accuracy"]
LAYER_HEADINGS = ["layer", "neurons", "fixed", "used, free", "unused"]


def task_rows(facts: dict[str, Any]) -> list[list[str]]:
    return [
        [
            str(task["task"]),
            task["learned"] or "-",
            ", ".join(task["classes"]),
            f"{task['images']:,}",
            "-" if task["accuracy"] is None else f"{task['accuracy']:.1f} % of {task['held_out']}",
        ]
        for task in facts["tasks"]
    ]


def layer_rows(facts: dict[str, Any]) -> list[list[str]]:
    return [
        [
            layer["layer"],
            f"{layer['neurons']:,}",
            f"{layer['fixed']:,} ({100 * layer['fixed'] / layer['neurons']:.0f} %)",
            f"{layer['used_free']:,}",
            f"{layer['neurons'] - layer['fixed'] - layer['used_free']:,}",
        ]
        for layer in facts["layers"]
    ]
