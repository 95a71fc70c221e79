"""A model of an encoder and a head as data and as a page: classes, calls, and which classes are taken for which."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from afaf.lifelong.encoded import EncodedModel
from afaf.report.page import Page, Section, html_table, number_cards
from afaf.version import __version__

CONFUSED = 0.01  # share of a class's images from which a confusion is shown
SHOWN = 20  # confusions on the page


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
