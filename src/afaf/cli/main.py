"""The command line: `afaf demo | run | doctor | report | costs | tune | sweep | reproduce | streams | methods | data`.

`afaf learn | predict | evaluate | inspect | classes | forget | merge | export | serve` are in
cli/lifelong.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from afaf.cli.consoles import ERR, OUT, say
from afaf.cli.costs import costs
from afaf.cli.data import data_app
from afaf.cli.demo import demo
from afaf.cli.doctor import doctor
from afaf.cli.errors import Commands
from afaf.cli.lifelong import add_lifelong
from afaf.cli.options import (
    SEEDS,
    STREAM,
    AtOnceOption,
    ConfigOption,
    DataOption,
    DeviceOption,
    ForceOption,
    JsonOption,
    MethodName,
    OnOption,
    PrecisionOption,
    SeedOption,
    SetOption,
    StreamName,
)
from afaf.cli.reproduce import reproduce
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
    resume: Annotated[Path | None, typer.Option(help="Go on with the interrupted run in this folder; nothing else is needed.")] = None,
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

    if resume is not None:
        given = stream or methods or seed is not None or seeds is not None or out or config or precision or tensorboard or jobs_at_once
        if given:
            raise ConfigError("--resume needs no more than the run folder: the rest is read from there (--device and --data may be given)")
        resume_run(OUT, ERR, resume, device, set_, data, as_json=json_)
        return
    if seed is not None and seeds is not None:
        raise ConfigError("--seed and --seeds exclude each other: one run, or several")
    if stream is None or not methods:
        raise ConfigError("name a stream and a method, for example `afaf run split-digits afaf`, or a run to go on with: --resume RUN")
    run_methods(
        OUT,
        ERR,
        stream,
        methods,
        seed=seed,
        seeds=seeds,
        device=device or "auto",
        out=out,
        jobs_at_once=jobs_at_once,
        on=on,
        settings=[*set_, *([f"run.precision={precision}"] if precision else [])],
        config=config,
        data=data,
        as_json=json_,
        tensorboard=tensorboard,
    )


@app.command(rich_help_panel=RUNS)
def sweep(
    stream: StreamName,
    method: MethodName,
    space: Annotated[Path | None, typer.Option(help="A TOML file of ranges and choices (default: the method's own).")] = None,
    trials: Annotated[int, typer.Option(help="As many in all, with those done before.", min=1, max=1_000_000)] = 20,
    search: Annotated[str, typer.Option(help="random; tpe, which learns from trials; or stability: what `afaf tune` does.")] = "random",
    storage: Annotated[str | None, typer.Option(help="An Optuna storage URL, or a journal (default: journal.log in --out).")] = None,
    tasks: Annotated[int | None, typer.Option(help="Judge a trial after the first N tasks (default: all).")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep (default: runs/sweep-STREAM-METHOD).")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the runs, and of random search.", min=0)] = 0,
    device: DeviceOption = "auto",
    jobs_at_once: AtOnceOption = None,
    on: OnOption = "local",
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Search for settings, judged on validation images of the tasks seen so far. The same command again goes on.

    Several processes may share a sweep."""
    from afaf.cli.sweep import sweep_settings
    from afaf.runs.job import Job

    sweep_settings(
        OUT,
        ERR,
        Job(stream, method, seed, set_, config, device, data),
        space=space,
        trials=trials,
        search=search,
        storage=storage,
        tasks=tasks,
        out=out,
        on=on,
        jobs_at_once=jobs_at_once,
        as_json=json_,
    )


@app.command(rich_help_panel=RUNS)
def tune(
    stream: StreamName,
    method: MethodName,
    tasks: Annotated[int, typer.Option(help="Tune on the first N tasks; the second is the first with something to hold on to.")] = 2,
    start: Annotated[float | None, typer.Option(help="The strongest value to try (default: the method's).")] = None,
    decay: Annotated[float, typer.Option(help="Each value tried is this part of the one before.")] = 0.5,
    searches: Annotated[int, typer.Option(help="How many values to try at most.")] = 12,
    tolerance: Annotated[float, typer.Option(help="How far accuracy may fall, as a part of the best.")] = 0.2,
    lr: Annotated[list[float], typer.Option(help="A learning rate to try; may be repeated (default: the preset's).")] = [],
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Choose how strongly a method (ewc, mas, lwf) holds on to what it knows, without looking at future tasks (FACIL's way)."""
    from afaf.api import tune as choose
    from afaf.cli.progress import ProgressDisplay
    from afaf.cli.tune import run_command, show_tuned

    with ProgressDisplay(ERR) as display:
        tuned = choose(
            stream,
            method,
            tasks=tasks,
            start=start,
            decay=decay,
            searches=searches,
            tolerance=tolerance,
            learning_rates=lr,
            seed=seed,
            device=device,
            config=config,
            settings=set_,
            data=data,
            on_event=display.on_event,
        )
    show_tuned(OUT, tuned, run_command(stream, tuned, set_, config, data), as_json=json_)


@app.command(rich_help_panel=RUNS)
def report(
    sources: Annotated[list[Path], typer.Argument(help="Run folders, folders that hold runs, or a folder of results.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes (default: report.html in the folder that holds them all).")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also put the figures there as SVG and PDF, for a paper.")] = None,
    force: ForceOption = False,
) -> None:
    """One self-contained HTML page of a run, of its seeds, of any runs compared, or of a folder of results."""
    from afaf.report.page import write_report

    say(f"wrote {write_report(sources, out, force=force)}")
    if figures is not None:
        from afaf.report.for_papers import write_figures

        for path in write_figures(sources, figures, force=force):
            say(f"wrote {path}")


@app.command(rich_help_panel=RUNS)
def streams(
    name: Annotated[str | None, typer.Argument(help="Show the tasks of this stream and save a contact sheet.")] = None,
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="Where the contact sheet goes (default: NAME.png).")] = None,
    force: ForceOption = False,
) -> None:
    """List the streams, or look at one."""
    from afaf.streams.benchmarks import BENCHMARKS, stream_names

    if name is not None:
        from afaf.cli.datasets import show_stream
        from afaf.cli.runs import file_name

        show_stream(name, data, out or Path(f"{file_name(name)}.png"), force=force)
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


@app.command(rich_help_panel=RUNS)
def methods() -> None:
    """List the methods, with their options."""
    from afaf.methods import find_method, method_names

    table = Table("method", "what it does", "options (section `method`)")
    for name in method_names():
        try:
            method = find_method(name)
            table.add_row(name, method.summary, ", ".join(method.Options.__dataclass_fields__))
        except ConfigError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "")
    OUT.print(table)


for command in (costs, doctor, reproduce):
    app.command(rich_help_panel=RUNS)(command)
app.command(rich_help_panel=FIRST)(demo)


def main() -> None:
    app()
