"""Datasets on disk: listing, downloading, checking; and the tasks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table

from afaf.cli.consoles import OUT, say_styled
from afaf.errors import ConfigError, DataError
from afaf.files import check_output
from afaf.streams.benchmarks import BENCHMARKS, open_stream
from afaf.streams.download import get as download_source
from afaf.streams.sheet import save_contact_sheet
from afaf.streams.sources import PARTS, SOURCES, Source, data_folder, find_source
from afaf.streams.sources.verify import Inspection, inspect_anew, inspect_remembered
from afaf.streams.tasks import Stream

COLOURS = {"verified": "green", "partial": "yellow", "missing": "dim", "damaged": "bold red"}


def list_datasets(data: Path | None, as_json: bool) -> None:
    folder = data_folder(data)
    inspections = [_look(each, folder, verify=False, quiet=as_json) for each in _with_files()]
    _show(folder, inspections, as_json)


def get_datasets(names: list[str], data: Path | None, force: bool) -> None:
    folder = data_folder(data)
    for each in _named(names):
        present = _look(each, folder, verify=False)
        if present.state == "verified" and not force:
            say_styled(f"[green]✓[/] {each.title} is already in {escape(str(folder))}, {present.state}")
            continue
        with _progress() as report:
            inspection = download_source(each, folder, report)
        inspect_anew(each, folder)
        counts = f"{inspection.total('train'):,} training and {inspection.total('test'):,} test images"
        say_styled(f"[green]✓[/] {each.title}: {counts}, {inspection.state}, in {escape(str(folder))}")


def check_datasets(names: list[str] | None, data: Path | None, as_json: bool) -> None:
    folder = data_folder(data)
    inspections = [_look(each, folder, verify=True, quiet=as_json) for each in (_named(names) if names else _with_files())]
    _show(folder, inspections, as_json)
    for each in inspections:
        if each.counts and not as_json:
            say_styled(f"\n{each.title}: {each.total('train'):,} + {each.total('test'):,}")
            OUT.print(_per_class(each))
    bad = [each for each in inspections if each.state == "damaged" or (names and each.state == "missing")]
    if bad:
        raise DataError("\n".join(f"{each.title} is {each.state}: {each.note}" for each in bad))


def _show(folder: Path, inspections: list[Inspection], as_json: bool) -> None:
    if as_json:
        datasets = [{**asdict(each), "train": each.total("train"), "test": each.total("test")} for each in inspections]
        print(json.dumps({"folder": str(folder), "datasets": datasets}, indent=2))
        return
    say_styled(f"Datasets in {escape(str(folder))}")
    table = Table(
        Column("dataset", overflow="fold"), "state", *_counts(), Column("on disk", justify="right"), Column("note", overflow="fold")
    )
    for each in inspections:
        counts = [f"{each.total(part):,}" if each.counts else "" for part in PARTS]
        note = each.note + (f" ({len(each.skipped)} unreadable left out: {', '.join(each.skipped[:3])})" if each.skipped else "")
        state = f"[{COLOURS[each.state]}]{each.state}[/]"
        table.add_row(each.name, state, *counts, f"{each.size / 1e6:,.1f} MB" if each.size else "", escape(note))
    OUT.print(table)


def only_stream_options(settings: Sequence[str]) -> dict[str, Any]:
    """The options of a stream from `stream.key=value`; no other setting says anything about a stream."""
    from afaf.runs.config import parse_set
    from afaf.runs.job import stream_options

    table = parse_set(settings)
    if others := sorted(set(table) - {"stream"}):
        raise ConfigError(f"--set {others[0]}.{next(iter(table[others[0]]))}: here only settings of the stream count: stream.NAME=VALUE")
    return stream_options(table)


def show_stream(name: str, data: Path | None, path: Path, *, force: bool = False, **options: Any) -> Path:
    """Print a stream's tasks with class names and counts, and save a contact sheet; return its path."""
    kind, _, place = name.partition(":")
    inputs = [Path(place).expanduser()] if kind in ("folder", "npz") else []
    check_output(path, "png", inputs, force=force)
    with OUT.status(f"Reading {escape(name)} ..."):
        stream = open_stream(name, data=data, **options)
    about = f": {BENCHMARKS[name].description}" if name in BENCHMARKS else ""
    if options:
        about = f", with {', '.join(f'stream.{option}' for option in options)} as given"
    say_styled(f"{escape(stream.name)}{about}")
    OUT.print(stream_table(stream))
    save_contact_sheet(stream, path, inputs=inputs, force=force)
    say_styled(f"Contact sheet: {escape(str(path))}")
    return path


def stream_table(stream: Stream) -> Table:
    """Tasks, their classes with the number of training and test images of each, and the totals."""
    table = Table(Column("task", justify="right"), Column("class", justify="right"), "name", *_counts())
    for task in stream:
        for class_id, name in zip(task.classes, task.class_names, strict=True):
            counts = (int((split.labels == class_id).sum()) for split in (task.train, task.test))
            table.add_row(str(task.number), str(class_id), escape(name), *(f"{count:,}" for count in counts))
        table.add_section()
    table.add_row("all", "", "", f"{sum(len(task.train) for task in stream):,}", f"{sum(len(task.test) for task in stream):,}")
    return table


def _counts() -> tuple[Column, Column]:
    """New columns for numbers of images."""
    return Column("training", justify="right"), Column("test", justify="right")


def _with_files() -> list[Source]:
    return [each for each in SOURCES.values() if each.needs_files]


def _named(names: list[str]) -> list[Source]:
    """Datasets by their own names, by a stream that needs them, or all."""
    chosen: dict[str, Source] = {}
    for name in names:
        if name == "all":
            meant = _with_files()
        elif name in BENCHMARKS:
            meant = [each for each in BENCHMARKS[name].sources if each.needs_files]
        else:
            meant = [find_source(name)]
        chosen.update({each.name: each for each in meant})
    return list(chosen.values())


def _look(each: Source, folder: Path, *, verify: bool, quiet: bool = False) -> Inspection:
    look = inspect_anew if verify else inspect_remembered
    if quiet:
        return look(each, folder)
    with OUT.status(f"Verifying {each.title} ..."):
        return look(each, folder)


def _per_class(inspection: Inspection) -> Table:
    table = Table("class", *_counts())
    for name in dict.fromkeys([*inspection.counts["train"], *inspection.counts["test"]]):
        table.add_row(name, *(f"{inspection.counts[part].get(name, 0):,}" for part in PARTS))
    return table


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar for every file that is downloaded."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=OUT) as bars:
        known: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done, total=total)

        yield report
