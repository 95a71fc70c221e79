"""`afaf serve`: a page and an HTTP API for a model file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from afaf.cli.consoles import say
from afaf.cli.photos import encoder_for
from afaf.errors import ConfigError

NEEDED = ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client")
SHORT = 16  # characters of a token below which it may be guessed


def serve_model(
    path: Path,
    *,
    host: str,
    port: int,
    token: str | None,
    hosts: Sequence[str],
    encoder: str,
    device: str,
    read_only: bool,
    limits: Mapping[str, Any],
    out: Console,
    stderr: Console,
) -> None:
    """Serve a model file until Ctrl-C."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"afaf serve needs {', '.join(missing)}: pip install 'afaf[serve]'")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or token != token.strip()):
        raise ConfigError("--token: use letters, digits and signs without spaces around them")
    from afaf.serve.limits import Limits
    from afaf.serve.server import serve
    from afaf.serve.service import Options

    if token is not None and len(token) < SHORT:
        stderr.print(f"warning: a token of {len(token)} characters can be guessed: use {SHORT} or more", highlight=False)
    if read_only and not path.exists():
        raise ConfigError(f"{path}: no such model, and with --read-only none can be begun")
    name = encoder_for(path, encoder, None, {}, stderr)
    options = Options(name, device, read_only, token, tuple(hosts), Limits(**limits))

    def ready(address: str) -> None:
        say(out, f"{path} is served at {address} ; Ctrl-C ends it")
        if token is not None:
            say(out, f"to open the page with the token already in it: {address}#token=TOKEN")

    try:
        serve(path, host, port, options, ready)
    except KeyboardInterrupt:
        say(out, "stopped; the model file is whole")
