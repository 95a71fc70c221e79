"""Whatever a client sends is answered with a typed error, harms nothing and takes bounded memory; the next client is served."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from afaf.serve import limits
from hostile_world import NAMES, snapshot
from serve_world import add, files, names, photo, running
from streams.test_fuzz import PICTURES, mutated

PATHS = ("../../etc/passwd", "/etc/passwd", "C:\\x", "a/../b", "x/images", "<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>")


@pytest.fixture
def path(network: Path, tmp_path: Path) -> Path:
    (tmp_path / "precious.txt").write_text("all that I know")
    return Path(shutil.copy(network, tmp_path / "network.safetensors"))


@pytest.fixture(scope="module")
def standing(network: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One server for attacks that leave no trace."""
    path = Path(shutil.copy(network, tmp_path_factory.mktemp("standing") / "network.safetensors"))
    with running(path) as client:
        yield client
        assert client.post("/predict", files=files([photo("red", 0)])).status_code == 200
        assert snapshot(path.parent).keys() == {path.name}


def png_of(side: int, colour: bool = False) -> bytes:
    """A small file that promises side x side pixels, of one bit each or in colour."""
    rows = zlib.compress(bytes(side * (3 * side + 1 if colour else side // 8 + 1)), 1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8 if colour else 1, 2 if colour else 0, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    )
    body = (struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


def test_files_that_are_no_images(standing: httpx.Client) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    whole = photo("red", 0)
    for data in (
        b"no image",
        whole[:60],
        whole[: len(whole) // 2],
        svg,
        b"GIF89a",
        b"\xff\xd8\xff",
        b"%PDF-1.4",
        os.urandom(1000),
        png_of(30_000),
    ):
        for answer in (
            standing.post("/predict", files=files([whole, data])),
            standing.post("/predict", content=data, headers={"content-type": "image/png"}),
            standing.post("/classes/x/images", files=files([data])),
        ):
            assert kind(answer) == (422, "data")
            assert "Traceback" not in answer.text
            assert "/" not in answer.json()["error"]["message"]
    assert standing.get("/classes").json()["waiting"] == {}
    assert kind(standing.post("/predict", files=files([b""]))) == (422, "data")


@given(mutated(PICTURES[0]) | mutated(PICTURES[1]) | mutated(PICTURES[4]) | mutated(PICTURES[5]))
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_damaged_pictures(standing: httpx.Client, data: bytes) -> None:
    answer = standing.post("/predict", content=data, headers={"content-type": "image/png"})
    assert answer.status_code == 200 or kind(answer) == (422, "data")


def test_many_bombs_take_little_memory(standing: httpx.Client) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        assert kind(standing.post("/predict", files=files([png_of(20_000)] * 8))) == (422, "data")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


def test_an_image_that_takes_too_long_ends_its_decoder_alone(path: Path) -> None:
    with running(path, limits={"decode_seconds": 0.15}) as client:
        for _ in range(3):
            assert kind(client.post("/predict", files=files([png_of(7000, colour=True)]))) == (422, "data")
        assert client.post("/predict", files=files([photo("red", 0)])).status_code == 200


def test_names_are_text(path: Path) -> None:
    before = snapshot(path.parent)
    taken = 0
    with running(path) as client:
        for name in (*NAMES[1:], *PATHS, "x" * 101, "\0", "a\nb", " ", ".", "..", "\u202e"):
            sent = quote(name.encode("utf-8", "surrogateescape"), safe="")
            answer = add(client, sent, [photo("red", 0)])
            taken += answer.status_code == 202
            if answer.status_code == 202:
                assert answer.json()["name"] == name
                assert client.get("/classes").json()["waiting"][name] == 1
                assert client.delete(f"/classes/{sent}/images").status_code == 204
            elif name not in (".", ".."):  # which clients resolve themselves
                assert kind(answer) == (422, "name"), name
        assert taken >= 8
        assert add(client, "%ed%a0%80", [photo("red", 0)]).status_code == 422
        assert client.get("/classes").json()["waiting"] == {}
        for name in PATHS:
            assert client.patch("/classes/cat", json={"name": name}).json() == {"name": name}
            client.post("/undo")
        for body in (b"", b"{", b"[]", b'{"name": 1}', b'{"name": ""}', b'{"name": "dog"}', b"[" * 60_000, b'{"name": "a\\u0000"}'):
            assert client.patch("/classes/cat", content=body).status_code == 422, body[:20]
        assert kind(client.patch("/classes/cat", content=b" " * 70_000)) == (413, "too_large")
        assert kind(client.delete("/classes/%2e%2e%2fcat")) == (404, "no_such_class")
    after = snapshot(path.parent)
    assert set(after) == set(before)
    assert after["precious.txt"] == before["precious.txt"]


def test_ten_thousand_classes(path: Path) -> None:
    with running(path, limits={"classes": 12}) as client:
        kinds = [add(client, f"class-{i}", [photo("red", 0)]) for i in range(40)]
        assert [answer.status_code for answer in kinds] == [202] * 10 + [409] * 30
        assert kind(kinds[-1]) == (409, "too_many_classes")


@pytest.mark.slow
def test_ten_thousand_classes_in_full(path: Path) -> None:
    with running(path) as client:
        statuses = [add(client, f"class-{i}", [photo("red", 0)]).status_code for i in range(10_000)]
        assert statuses.count(202) == limits.RequestLimits().classes - 2
        assert set(statuses) == {202, 409}


def test_requests_beyond_the_limits(path: Path) -> None:
    small = {"image_bytes": 20_000, "request_bytes": 60_000, "request_images": 3, "queued_images": 2}
    with running(path, limits=small) as client:
        assert kind(client.post("/predict", files=files([photo("red", 0)] * 4)))[0] == 400
        assert kind(client.post("/predict", content=bytes(20_001), headers={"content-type": "image/png"})) == (413, "too_large")
        assert kind(client.post("/predict", files=files([bytes(20_001)]))) == (413, "too_large")
        assert kind(client.post("/predict", files=files([bytes(19_000)] * 3 + [bytes(9000)])))[0] in (400, 413)

        def endless() -> Iterator[bytes]:
            while True:
                yield bytes(5000)

        with contextlib.suppress(httpx.WriteError):
            assert kind(client.post("/predict", content=endless(), headers={"content-type": "image/png"})) == (413, "too_large")
        for content_type in ("text/html", "", "multipart/form-data", "application/json"):
            assert client.post("/predict", content=b"x", headers={"content-type": content_type}).status_code in (400, 415)
        for query in ("top=0", "top=x", "top=nan", "unknown_below=2", "unknown_below=-1", "top=1e9"):
            assert kind(client.post(f"/predict?{query}", files=files([photo("red", 0)]))) == (422, "invalid")
    with running(path, limits={"bodies_bytes": 1000}) as client:
        assert kind(client.post("/predict", files=files([photo("red", 0)]))) == (503, "busy")


def exchange(client: httpx.Client, sent: bytes, *, end: bool = True) -> bytes:
    """What the server says to these bytes, until it closes the connection."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            if end:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += part
        return received


def head(length: int, *more: str) -> bytes:
    lines = ["POST /predict HTTP/1.1", "Host: localhost", f"Content-Length: {length}", "Content-Type: image/png", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def test_truncated_and_malformed_requests(standing: httpx.Client) -> None:
    whole = photo("red", 0)
    form = b'--edge\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n' + whole
    typed = {"content-type": "multipart/form-data; boundary=edge"}
    for body in (form, form + b"\r\n" + form[:-20], form + b"\r\n--edge", b"--edge--", b"", b"--edge\r\n\r\n\r\n--edge--"):
        assert standing.post("/predict", content=body, headers=typed).status_code in (400, 422), body[:30]
    assert standing.post("/predict", content=form + b"\r\n--edge--\r\n", headers=typed).status_code == 200
    exchange(standing, head(len(whole)) + whole[:100])
    for sent in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", head(-5)):
        assert b" 200 " not in exchange(standing, sent)
    assert b" 403 " in exchange(standing, b"GET /classes HTTP/1.1\r\nConnection: close\r\n\r\n")  # no Host
    two = b"GET /classes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 403 " in exchange(standing, two)
    assert exchange(standing, b"GET /classes HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20), end=False) == b""


def test_slow_clients_are_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.3)
    with running(path, limits={"request_seconds": 1.0}) as client:
        assert b" 408 " in exchange(client, head(1000) + b"few", end=False)
        assert exchange(client, b"GET /cl", end=False) == b""
        assert exchange(client, b"", end=False) == b""
        with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(head(1000))
                for _ in range(1000):  # a byte now and then
                    connection.sendall(b"x")
                    if connection.recv(1000, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                        break
            connection.settimeout(30)
            assert connection.recv(1000)
        assert names(client) == ["cat", "dog"]


def test_a_client_that_does_not_read_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.3)
    with running(path) as client:
        path.write_bytes(bytes(50 << 20))  # more than the system buffers
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect((client.base_url.host, client.base_url.port or 80))
            connection.sendall(b"GET /model HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Event().wait(2)  # far longer than a client may stall
            received = 0
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1 << 20):
                    received += len(part)
            assert received < 50 << 20
        assert names(client) == ["cat", "dog"]


def test_requests_sent_ahead_of_their_answers_do_not_pile_up(standing: httpx.Client) -> None:
    one, last = (f"GET /health HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode() for more in ("", "Connection: close\r\n"))
    few, many = (exchange(standing, one * count + last, end=False) for count in (2, 5000))
    assert few.count(b" 200 ") == 3
    assert many.count(b" 200 ") < 100


def test_many_connections(path: Path) -> None:
    with running(path) as client, contextlib.ExitStack() as stack:
        where: Any = (client.base_url.host, client.base_url.port)
        for _ in range(limits.CONNECTIONS + 50):
            stack.enter_context(contextlib.closing(socket.create_connection(where)))
        stack.close()
        for _ in range(500):  # until the server has seen that they are closed
            with contextlib.suppress(httpx.TransportError):
                assert names(client) == ["cat", "dog"]
                return
            threading.Event().wait(0.02)
        pytest.fail("the server answers no more")


def test_a_model_that_vanishes_is_no_traceback(path: Path) -> None:
    with running(path) as client:
        path.unlink()
        answer = client.get("/model")
        assert kind(answer) == (500, "internal")
        assert str(path) not in answer.text
        assert client.post("/predict", files=files([photo("red", 0)])).status_code == 200
