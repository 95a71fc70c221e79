"""Access checks (host, origin, token and rate of a request) and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from afaf.serve.errors import Refused, refusal, response
from afaf.serve.limits import RateLimit

HEALTH = "/health"
PAGES = ("/", "/docs")  # other sites may link to them; they contain nothing of the model
PUBLIC = (*PAGES, "/openapi.json")
STATIC = "/page/"
WRONG_TOKEN = 10.0  # requests that a wrong token counts for
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str], rate: RateLimit):
        self.app, self.rate = app, rate
        self.hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}
        self.key = secrets.token_bytes(32)
        self.token = None if token is None else self._digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # Routes see the path as it was sent: a name with %2F in it stays one segment.
        scope = {**scope, "path": scope["raw_path"].decode("latin-1")}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self.check(scope)
        except Refused as error:
            await response(refusal(error))(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def check(self, scope: Scope) -> None:
        if scope["path"] == HEALTH:
            return
        headers, client = Headers(scope=scope), (scope.get("client") or ("",))[0]
        self.rate.take(client)
        self._check_host(headers, scope)
        self._check_origin(headers, scope)
        if self.token is not None and scope["path"] not in PUBLIC and not scope["path"].startswith(STATIC):
            self._check_token(headers, client)

    def _check_host(self, headers: Headers, scope: Scope) -> None:
        """Refuse other host names: with DNS rebinding, a foreign page reaches a local server by a name of its own."""
        sent = headers.getlist("host")
        host = host_name(sent[0]) if len(sent) == 1 else None
        if host is None or not (host in self.hosts or _is_own_address(host, scope)):
            raise Refused(403, "host", "this server is not known by that name: start it with --allow-host NAME")

    def _check_origin(self, headers: Headers, scope: Scope) -> None:
        """Refuse requests from pages of another origin."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        opened = scope["method"] in ("GET", "HEAD") and scope["path"] in PAGES
        foreign = origin is not None and place_of(origin) != headers["host"].lower()
        if foreign or (site not in ("same-origin", "none") and not opened):
            raise Refused(403, "origin", "a page of another origin may not use this server")

    def _check_token(self, headers: Headers, client: str) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(self._digest(given.strip().encode("latin-1")), self.token or b""):
            if given:
                self.rate.take(client, WRONG_TOKEN)
            raise Refused(401, "token", "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})

    def _digest(self, text: bytes) -> bytes:
        return hmac.digest(self.key, text, hashlib.sha256)


def place_of(origin: str) -> str | None:
    """The host and port in an Origin header; None if it is not an origin, which is then foreign."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def host_name(header: str) -> str | None:
    """The name in a Host header, without its port; None if it is not a host."""
    try:
        parts = urlsplit(f"//{header}")
        if parts.netloc != header or "@" in header or parts.port == 0:
            return None
        return (parts.hostname or "").rstrip(".") or None
    except ValueError:
        return None


def _is_own_address(host: str, scope: Scope) -> bool:
    """Whether it is a loopback address, or the one at which the request arrived: addresses, unlike names, cannot be redirected."""
    try:
        address = ipaddress.ip_address(host)
        return address.is_loopback or address == ipaddress.ip_address((scope.get("server") or ("",))[0])
    except ValueError:
        return False
