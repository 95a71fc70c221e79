"""Bind the address, then serve: a wrong address is reported before the model is loaded."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from afaf.errors import ConfigError
from afaf.serve.app import build_app
from afaf.serve.limits import BoundedProtocol
from afaf.serve.service import ServeOptions, Service

BACKLOG = 256


def serve(path: Path, host: str, port: int, options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `ready` is called with the address. Raises ConfigError for an address that is refused."""
    with bound(host, port, options.token) as listening:
        server = uvicorn.Server(uvicorn_config(path, options))
        where, number = listening.getsockname()[:2]
        where = "localhost" if ipaddress.ip_address(where.partition("%")[0]).is_unspecified else where
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises the signal again when it has ended
        ready(f"http://{f'[{where}]' if ':' in where else where}:{number}/")
        server.run(sockets=[listening])


def uvicorn_config(path: Path, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(Service(path, options)),
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )


def bound(host: str, port: int, token: str | None) -> socket.socket:
    """A listening socket. Any address but the local one requires a token."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: no address of that name: {error}") from None
    if token is None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and whoever reaches it may teach the model: set a token (--token TEXT, or "
            "AFAF_TOKEN in the environment), or leave --host out"
        )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen at {host} port {port}: {error.strerror}: choose another with --port or --host") from None
    return listening
