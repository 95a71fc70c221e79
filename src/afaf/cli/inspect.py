"""`afaf inspect`: the contents of a model file."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from afaf.cli.consoles import say
from afaf.errors import ConfigError
from afaf.files import check_output, write_output
from afaf.files.marks import format_of
from afaf.lifelong.model_store import open_model
from afaf.report.figures import save_ledger_picture
from afaf.report.model_page import LAYER_HEADINGS, TASK_HEADINGS, layer_rows, model_facts, model_page, task_rows

PICTURES = (".png", ".svg", ".pdf")


def inspect_model(path: Path, *, html: Path | None, picture: Path | None, as_json: bool, force: bool, out: Console) -> None:
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise ConfigError(f"--picture {picture}: name a file that ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    model = open_model(path)
    if html is not None:
        check_output(html, "html", [path], force=force)
    if picture is not None:
        check_output(picture, format_of(picture), [path], force=force)
    facts = model_facts(path, model)
    if html is not None:
        text = model_page(path, model).html()
        write_output(html, "html", text.encode(), [path], force=force)
        say(out, f"wrote {html}")
    if picture is not None:
        write_output(picture, format_of(picture), lambda part: save_ledger_picture(model.model, part), [path], force=force)
        say(out, f"wrote {picture}")
    if as_json:
        print(json.dumps(facts))
        return
    if html is not None or picture is not None:
        return
    shape = "x".join(map(str, facts["input_shape"]))
    say(out, f"{path}: {facts['bytes'] / 1e6:.1f} MB, {facts['network']} for inputs of {shape}, seed {facts['seed']}")
    say(out, f"{facts['weights']:,} of {facts['dense_weights']:,} weights owned; temperature {facts['temperature']:.2f}")
    for headings, rows in ((TASK_HEADINGS, task_rows(facts)), (LAYER_HEADINGS, layer_rows(facts))):
        table = Table(*headings)
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        out.print(table)
    owned = ", ".join(f"{join['connections']} {100 * join['owned'] / join['total']:.1f} %" for join in facts["connections"])
    say(out, f"connections owned: {owned}")
    say(
        out,
        f"{facts['tasks_that_fit']} more tasks of the last one's size fit" if model.learns else "written by afaf run: it learns no more",
    )
