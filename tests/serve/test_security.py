"""Who may use the server: hosts, origins, tokens, rates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_world import files, photo, running

TOKEN = "a-long-and-secret-token"
GUARDED = ("/classes", "/model", "/model.onnx", "/metrics", "/jobs/x", "/jobs/x/events")


@pytest.fixture
def path(network: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(network, tmp_path / "network.safetensors"))


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


def test_a_foreign_host_is_refused(path: Path) -> None:
    with running(path, hosts=("Photos.example",)) as client:
        port = client.base_url.port
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "",
            "localhost@evil.example",
            "10.0.0.7",
            "[::2]",
            "a b",
            "[",
            "[::1",
            "[localhost]",
            "127.0.0.1:port",
            "127.0.0.1:99999",
        ):
            for address in ("/", "/classes", "/page/app.js", "/docs", "/nowhere"):
                assert kind(client.get(address, headers={"host": host})) == (403, "host"), host
            assert client.get("/health", headers={"host": host}).json() == {"status": "ok"}
        for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", "[::1]:80", "photos.example", "photos.example.:8443"):
            assert client.get("/classes", headers={"host": host}).status_code == 200, host


def test_a_foreign_origin_may_neither_teach_nor_ask(path: Path) -> None:
    with running(path) as client:
        own = str(client.base_url).rstrip("/")
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": ""},
            {"origin": "http://127.0.0.1:1"},
            {"origin": "http://["},
            {"origin": "http://[::1"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            before = client.get("/classes").json()
            for method, address in (
                ("POST", "/undo"),
                ("POST", "/predict"),
                ("GET", "/model"),
                ("DELETE", "/classes/cat"),
                ("GET", "/classes"),
            ):
                assert kind(client.request(method, address, headers=headers)) == (403, "origin"), (headers, address)
            assert client.get("/classes").json() == before
        assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page may be followed
        assert client.get("/classes", headers={"origin": own, "sec-fetch-site": "same-origin"}).status_code == 200
        assert "access-control-allow-origin" not in client.get("/classes", headers={"origin": own}).headers


def test_a_token_is_asked_for_everywhere_but_on_the_empty_page(path: Path) -> None:
    with running(path, token=TOKEN) as client:
        for given in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"):
            headers = {"authorization": given.encode("latin-1")}
            for address in GUARDED:
                assert kind(client.get(address, headers=headers)) == (401, "token"), given
            assert kind(client.post("/undo", headers=headers)) == (401, "token")
            assert kind(client.post("/predict", headers=headers, files=files([photo("red", 0)]))) == (401, "token")
        for address in ("/", "/docs", "/openapi.json", "/page/app.js", "/health"):
            answer = client.get(address, headers={"authorization": ""})
            assert answer.status_code == 200
            assert TOKEN not in answer.text
            assert "network.safetensors" not in answer.text
        assert client.get("/classes").status_code == 200
        assert client.get("/classes", headers={"authorization": f"bearer  {TOKEN}"}).status_code == 200
        assert client.get(f"/classes?token={TOKEN}", headers={"authorization": ""}).status_code == 401  # never from an address


def test_a_client_that_asks_too_often_waits(path: Path) -> None:
    with running(path, limits={"rate": 0.001, "burst": 5.0}) as client:
        answers = [client.get("/classes") for _ in range(7)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 200


def test_wrong_tokens_are_not_tried_by_the_thousand(path: Path) -> None:
    with running(path, token=TOKEN, limits={"rate": 0.001, "burst": 30.0}) as client:
        statuses = [client.get("/classes", headers={"authorization": f"Bearer {guess}"}).status_code for guess in range(8)]
        assert statuses.count(401) <= 4
        assert statuses[-1] == 429


def test_every_answer_has_the_headers(path: Path) -> None:
    with running(path) as client:
        answers: list[Any] = [client.get(address) for address in ("/", "/classes", "/nowhere", "/page/app.js", "/health", "/model")]
        answers += [client.get("/", headers={"host": "evil.example"}), client.post("/predict", content=b"x")]
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers
