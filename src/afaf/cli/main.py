"""The command line: `afaf demo | run | doctor | report | costs | tune | sweep | reproduce | streams | methods | data`.

`afaf learn | predict | evaluate | inspect | classes | forget | merge | export | serve` are in
cli/lifelong.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from afaf.cli.consoles import OUT, say
from afaf.cli.costs import costs
from afaf.cli.data import data_app
from afaf.cli.demo import demo
from afaf.cli.doctor import doctor
from afaf.cli.errors import Commands
from afaf.cli.lifelong import add_lifelong
from afaf.cli.methods import methods
from afaf.cli.options import (
    SEEDS,
    STREAM,
    AtOnceOption,
    ConfigOption,
    DataOption,
    ForceOption,
    JsonOption,
    OnOption,
    PrecisionOption,
    SetOption,
)
from afaf.cli.reproduce import reproduce
from afaf.cli.sweep import sweep
from afaf.cli.tune import tune
from afaf.errors import ConfigError
from afaf.version import __version__

FIRST = "To see it work"
RUNS = "Streams, methods and the paper"

app = typer.Typer(
    cls=Commands,
    help="Continual learning with sparse sub-networks in one fixed-size network (AFAF, ECML PKDD 2022).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_lifelong(app)
app.add_typer(data_app, name="data", rich_help_panel=RUNS)
RunStream = Annotated[str | None, STREAM]


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"afaf {__version__}")
        raise typer.Exit()


@app.callback()
def main_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    pass


@app.command(rich_help_panel=RUNS)
def run(
    stream: RunStream = None,
    methods: Annotated[list[str] | None, typer.Argument(help="One or more methods: `afaf methods` lists them.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of a single run (default 0).", min=0)] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Run seeds 0..N-1 of each method; runs that are done are not repeated.", **SEEDS)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto (the default), cpu, cuda, cuda:1 or mps.")] = None,
    out: Annotated[
        str | None, typer.Option(help="The run folder, or a URL; of several runs OUT/METHOD/SEED (default: runs/STREAM-METHOD-SEED).")
    ] = None,
    precision: PrecisionOption = None,
    resume: Annotated[str | None, typer.Option(help="Go on with the interrupted run in this folder; nothing else is needed.")] = None,
    jobs_at_once: AtOnceOption = None,
    on: OnOption = "local",
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write events for TensorBoard into the run folder.")] = False,
) -> None:
    """Learn a stream with one or more methods, one task after the other. `afaf report` compares the runs."""
    from afaf.cli.runs import resume_run, run_methods
    from afaf.runs.job import Job

    if resume is not None:
        given = stream or methods or seed is not None or seeds is not None or out or config or precision or tensorboard or jobs_at_once
        if given or on != "local":
            raise ConfigError("--resume needs no more than the run folder: the rest is read from there (--device and --data may be given)")
        resume_run(resume, device, set_, data, as_json=json_)
        return
    if seed is not None and seeds is not None:
        raise ConfigError("--seed and --seeds exclude each other: one run, or several")
    if stream is None or not methods:
        raise ConfigError("name a stream and a method, for example `afaf run split-digits afaf`, or a run to go on with: --resume RUN")
    settings = [*set_, *([f"run.precision={precision}"] if precision else [])]
    like = Job(stream, methods[0], seed or 0, settings, config, device or "auto", data, out)
    run_methods(like, methods, range(seeds) if seeds else None, on, jobs_at_once, as_json=json_, tensorboard=tensorboard)


@app.command(rich_help_panel=RUNS)
def report(
    sources: Annotated[list[str], typer.Argument(help="Run folders, folders that hold runs, or a folder of results; or their URLs.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes (default: report.html in the folder that holds them all, for URLs here).")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also put the figures there as SVG and PDF, for a paper.")] = None,
    force: ForceOption = False,
) -> None:
    """One self-contained HTML page of a run, of its seeds, of any runs compared, or of a folder of results."""
    from afaf.files.urls import is_url
    from afaf.report.page import write_report
    from afaf.runs.mirror import local_copy

    with contextlib.ExitStack() as copies:
        folders = [copies.enter_context(local_copy(source, write=False)) for source in sources]
        out = out or (Path("report.html") if any(map(is_url, sources)) else None)
        say(f"wrote {write_report(folders, out, force=force)}")
        if figures is not None:
            from afaf.report.for_papers import write_figures

            for path in write_figures(folders, figures, force=force):
                say(f"wrote {path}")


@app.command(rich_help_panel=RUNS)
def streams(
    name: Annotated[str | None, typer.Argument(help="Show the tasks of this stream and save a contact sheet.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="A setting of the stream, such as stream.order=seed:7; may be repeated.")] = [],
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="Where the contact sheet goes (default: NAME.png).")] = None,
    force: ForceOption = False,
) -> None:
    """List the streams, or look at one."""
    from afaf.streams.benchmarks import BENCHMARKS, stream_names

    if name is not None:
        from afaf.cli.datasets import only_stream_options, show_stream
        from afaf.cli.runs import file_name

        options = only_stream_options(set_)
        show_stream(name, data, out or Path(f"{file_name(name)}.png"), force=force, **options)
        return
    table = Table("stream", "tasks", "classes", "images", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what it is", overflow="fold")
    for benchmark in BENCHMARKS.values():
        outline = benchmark.outline()
        counts = f"{sum(outline.train_counts):,}"
        table.add_row(benchmark.name, str(len(outline)), str(outline.n_classes), counts, benchmark.description)
    for plugin in stream_names():
        if plugin not in BENCHMARKS:
            table.add_row(plugin, "", "", "", "from another package")
    table.add_row("folder:PATH", "", "", "", "your own images: PATH/train/CLASS/*.png, optionally PATH/test/CLASS/*.png")
    table.add_row("npz:PATH", "", "", "", "your own arrays")
    OUT.print(table)


for command in (methods, costs, tune, sweep, doctor, reproduce):
    app.command(rich_help_panel=RUNS)(command)
app.command(rich_help_panel=FIRST)(demo)


def main() -> None:
    app()
