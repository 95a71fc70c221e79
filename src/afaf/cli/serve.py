"""`afaf serve`: a page and an HTTP API for a model file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from afaf.cli.consoles import say, warn
from afaf.cli.options import DeviceOption
from afaf.errors import ConfigError

NEEDED = ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client")
SHORT = 16  # characters of a token below which it may be guessed


def serve(
    file: Annotated[Path, typer.Argument(help="The model file; a new one is created with the first class taught.")],
    host: Annotated[str, typer.Option(help="The address to listen at; another than the local one needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[str | None, typer.Option(envvar="AFAF_TOKEN", help="A secret that every request must give.")] = None,
    allow_host: Annotated[list[str], typer.Option(help="Another name by which the server is reached; may be repeated.")] = [],
    read_only: Annotated[bool, typer.Option("--read-only", help="Answer, but neither teach nor change.")] = False,
    rate: Annotated[float, typer.Option(help="Requests of one client in a second; 0: any number.", min=0.0)] = 50.0,
    encoder: Annotated[str, typer.Option(help="New model: as for afaf learn; auto, none or a name.")] = "auto",
    device: DeviceOption = "auto",
) -> None:
    """Serve a page and an HTTP API where a model is taught and asked. Needs afaf\\[serve]."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"afaf serve needs {', '.join(missing)}: pip install 'afaf[serve]'")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or token != token.strip()):
        raise ConfigError("--token: use letters, digits and signs without spaces around them")
    from afaf.cli.photos import Encoding, encoder_for
    from afaf.serve import server
    from afaf.serve.limits import RequestLimits
    from afaf.serve.service import ServeOptions

    if token is not None and len(token) < SHORT:
        warn(f"a token of {len(token)} characters can be guessed: use {SHORT} or more")
    if read_only and not file.exists():
        raise ConfigError(f"{file}: no such model, and --read-only cannot create one")
    name, _ = encoder_for(file, Encoding(encoder), {})
    options = ServeOptions(name, device, read_only, token, tuple(allow_host), RequestLimits(rate=rate, burst=4 * rate))

    def ready(address: str) -> None:
        say(f"{file} is served at {address} ; Ctrl-C ends it")
        if token is not None:
            say(f"to open the page with the token already in it: {address}#token=TOKEN")

    try:
        server.serve(file, host, port, options, ready)
    except KeyboardInterrupt:
        say("stopped; the model file is whole")
