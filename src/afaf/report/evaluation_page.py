"""An evaluation as a page."""

from __future__ import annotations

from pathlib import Path

from afaf.lifelong.evaluate import Evaluation
from afaf.report.page import Page, Section, html_table, number_cards
from afaf.version import __version__

CLASS_HEADINGS = ["class", "call", "images", "right, %", "most often taken for"]


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
        cards.append((f"{evaluation.unknown:.1f} %", "called unknown", "farther from all classes than 99 % of held-out images"))
    calls = [[str(row["call"]), f"{row['images']:,}", f"{row['accuracy']:.1f}"] for row in evaluation.calls]
    wrong = [[row["label"], row["answer"], f"{row['images']:,}"] for row in evaluation.confusion[:30]]
    worst_headings = ["file", "class", "answer", "probability"]
    worst = [[row["file"], row["label"], row["answer"], f"{row['probability']:.3f}"] for row in evaluation.worst]
    sections = (
        Section("numbers", "Evaluation", number_cards(cards)),
        Section("classes", "By class", html_table(CLASS_HEADINGS, class_rows(evaluation), words=(0, 4))),
        Section("calls", "By call", html_table(["call", "images", "right, %"], calls)),
        Section("confusion", "Wrong answers", html_table(["class", "answer", "images"], wrong, words=(0, 1)) if wrong else ""),
        Section(
            "worst",
            "The surest wrong answers",
            html_table(worst_headings, worst, words=(0, 1, 2)) if worst else "",
        ),
    )
    return Page(model.name, str(folder), sections, f"afaf {__version__}")
