"""A model file as data and as a page: classes by task and date, capacity, sizes, owners of connections; and the page of an evaluation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.evaluate import Evaluation
from afaf.lifelong.model import Lifelong
from afaf.report.ledger_facts import neuron_layers, owned_layers
from afaf.report.page import Page, Section, html_table, number_cards
from afaf.report.run_page import ledger_charts
from afaf.streams.sources.verify import shortened
from afaf.version import __version__

TASK_HEADINGS = ["task", "learned (UTC)", "classes", "images", "held-out accuracy"]
LAYER_HEADINGS = ["layer", "neurons", "fixed", "used, free", "unused"]
CLASS_HEADINGS = ["class", "call", "images", "right, %", "most often taken for"]
CONFUSED = 0.01  # share of a class's images from which a confusion is shown
SHOWN = 20  # confusions on the page


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
    edges = [{"connections": f"W_{o.l} {o.name}", "total": o.total, "owned": sum(o.by_task.values())} for o in owned_layers(model.model)]
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "method": model.model.method,
        "network": spec.name,
        "encoder": None if model.identity is None else model.identity.to_dict(),
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
        "connections": edges,
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
    about = f"{facts['method']}, {facts['network']}{encoder_below(facts)}, seed {facts['seed']}"
    return Page(path.name, about, sections, f"afaf {__version__}")


def encoder_below(facts: dict[str, Any]) -> str:
    encoder = facts["encoder"]
    return "" if encoder is None else f" on features of encoder {encoder['name']} ({encoder['digest'][:12]})"


def task_rows(facts: dict[str, Any]) -> list[list[str]]:
    return [
        [
            str(task["task"]),
            task["learned"] or "-",
            ", ".join(task["classes"]),
            f"{task['images']:,}",
            _share(task["accuracy"], task["held_out"]),
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


# A model of an encoder and a head: classes, calls, and which classes are taken for which.


def encoded_facts(path: Path, model: EncodedModel) -> dict[str, Any]:
    """Return all that `afaf inspect` shows."""
    counts = (model.taught.counts + model.held.counts).long().tolist()
    facts: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size, "encoder": model.identity.to_dict()}
    return facts | {
        "head": asdict(model.head),
        "classes": [{"label": str(label), "call": model.life.task_of(c), "images": counts[c]} for label, c in model.life.known.items()],
        "calls": [{"call": i, **asdict(note)} for i, note in enumerate(model.life.tasks, 1)],
        "temperature": round(model.temperature, 4),
        "unknown_above": model.unknown_above,
    }


def confusions(model: EncodedModel) -> list[tuple[str, str, float]]:
    """Class, answer and estimated share of the class's images, the largest first."""
    shares, labels = model.confusion(), [str(label) for label in model.life.known]
    if shares is None:
        return []
    pairs = [(labels[i], labels[j], float(shares[i, j])) for i in range(len(labels)) for j in range(len(labels)) if i != j]
    return sorted((pair for pair in pairs if pair[2] >= CONFUSED), key=lambda pair: -pair[2])


def encoded_page(path: Path, model: EncodedModel) -> Page:
    facts, wrong = encoded_facts(path, model), confusions(model)
    cards = (
        (str(len(facts["classes"])), "classes", f"in {len(facts['calls'])} calls"),
        (f"{sum(row['images'] for row in facts['classes']):,}", "images", "in the sums; none is kept"),
        (f"{facts['bytes'] / 1e6:.1f} MB", "file", "without the encoder"),
        (f"{facts['temperature']:.3g}", "temperature", "of its probabilities"),
    )
    classes = [[row["label"], str(row["call"]), f"{row['images']:,}"] for row in facts["classes"]]
    calls = [
        [str(row["call"]), row["learned"], f"{row['images'] + row['held_out']:,}", _share(row["accuracy"], row["held_out"])]
        for row in facts["calls"]
    ]
    pairs = [[label, answer, f"{100 * share:.0f} %"] for label, answer, share in wrong[:SHOWN]]
    estimated = "Estimated from held-out images, with a head that has not learned them."
    sections = [
        Section("numbers", "The model", number_cards(cards)),
        Section("classes", "Classes", html_table(["class", "first in call", "images"], classes, words=(0,))),
        Section("calls", "Calls", html_table(["call", "learned (UTC)", "images", "held-out accuracy"], calls, words=(1,))),
    ]
    if pairs:
        sections.append(Section("confusion", "Taken for", html_table(["class", "answer", "images"], pairs, words=(0, 1)), estimated))
    about = f"encoder {model.identity.name} ({model.identity.digest[:12]}), head {model.head.name}"
    return Page(path.name, about, tuple(sections), f"afaf {__version__}")


def _share(accuracy: float | None, held_out: int) -> str:
    return "-" if accuracy is None else f"{accuracy:.1f} % of {held_out}"


# An evaluation.


def class_rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [row["label"], str(row["call"]), f"{row['images']:,}", f"{row['accuracy']:.1f}", row["taken_for"] or "-"]
        for row in evaluation.classes
    ]


def evaluation_page(model: Path, folder: Path, evaluation: Evaluation) -> Page:
    cards = [
        (f"{evaluation.accuracy:.1f} %", "right", f"of {evaluation.images:,} images"),
        (f"{evaluation.calibration_error:.3f}", "calibration error", "how far probabilities and accuracy lie apart"),
    ]
    if evaluation.unknown is not None:
        cards.append((f"{evaluation.unknown:.1f} %", "labelled none of these", "farther from all classes than 99 % of held-out images"))
    calls = [[str(row["call"]), f"{row['images']:,}", f"{row['accuracy']:.1f}"] for row in evaluation.calls]
    wrong = [[row["label"], row["answer"], f"{row['images']:,}"] for row in evaluation.confusion[:30]]
    worst_headings = ["file", "class", "answer", "probability"]
    worst = [[row["file"], row["label"], row["answer"], f"{row['probability']:.3f}"] for row in evaluation.worst]
    apart = evaluation.unknown_classes
    called = "-" if apart.none_of_these is None else f"{apart.none_of_these:,}"
    not_known = html_table(
        ["classes", "images", "labelled none of these"], [[shortened(apart.classes), f"{apart.images:,}", called]], words=(0,)
    )
    sections = (
        Section("numbers", "Evaluation", number_cards(cards)),
        Section("classes", "By class", html_table(CLASS_HEADINGS, class_rows(evaluation), words=(0, 4))),
        Section(
            "unknown", "Classes that the model does not know", not_known if apart.images else "", "Not counted elsewhere on this page."
        ),
        Section("calls", "By call", html_table(["call", "images", "right, %"], calls)),
        Section("confusion", "Wrong answers", html_table(["class", "answer", "images"], wrong, words=(0, 1)) if wrong else ""),
        Section(
            "worst",
            "The surest wrong answers",
            html_table(worst_headings, worst, words=(0, 1, 2)) if worst else "",
        ),
    )
    return Page(model.name, str(folder), sections, f"afaf {__version__}")
