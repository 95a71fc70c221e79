"""How `afaf serve` begins, and how it refuses to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from afaf import AFAFClassifier
from afaf.cli import serve as command
from afaf.cli.main import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, arguments)], env={"COLUMNS": "200", "AFAF_TOKEN": ""})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "no.such.host.invalid"])
def test_another_address_needs_a_token(tmp_path: Path, host: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "m.safetensors"), "--host", host])
    assert result.exit_code == 2
    assert host in result.output


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", str(tmp_path / "m.safetensors"), "--port", str(port)])
    assert result.exit_code == 2
    assert str(port) in result.output


def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("no_such_package",))
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "m.safetensors")])
    assert result.exit_code == 2
    assert "afaf[serve]" in result.output


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    for path in (tmp_path, tmp_path / "text"):
        assert CliRunner().invoke(app, ["serve", str(path), "--port", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["serve", str(tmp_path / "new"), "--read-only"]).exit_code == 2
    assert call(tmp_path / "new", "--token", " x").exit_code == 2
    assert (tmp_path / "text").read_text() == "no model"


def test_a_network_that_learned_from_images_has_no_encoder(tmp_path: Path) -> None:
    x, path = np.zeros((4, 8, 8, 1), dtype=np.uint8), tmp_path / "network.safetensors"
    AFAFClassifier(epochs=1, max_tasks=2).fit(x, ["a", "b"] * 2).save(path)
    result = call(path, "--encoder", "patches", "--host", "no.such.host.invalid")  # which would be refused later
    assert (result.exit_code, "--encoder" in result.output) == (2, True)


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    code = "from afaf.cli.main import main; main()"
    arguments = ["serve", str(tmp_path / "m.safetensors"), "--port", "0", "--token", "s3cret", "--host", "0.0.0.0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = re.search(r":(\d+)/", line)
        assert port is not None, line
        address = f"http://127.0.0.1:{port[1]}"
        assert httpx.get(f"{address}/health", timeout=60).json() == {"status": "ok"}
        assert httpx.get(f"{address}/classes").status_code == 401
        assert httpx.get(f"{address}/classes", headers={"authorization": "Bearer s3cret"}).json()["classes"] == []
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "s3cret" not in line + rest + errors
        assert "Traceback" not in errors
    finally:
        process.kill()
