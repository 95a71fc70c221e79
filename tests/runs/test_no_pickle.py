"""No pickle file is ever written or read: every artefact of a run opens with safe readers, and the package has no unsafe one."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from PIL import Image
from safetensors import safe_open

import afaf
from afaf.runs.stop import StopToken
from conftest import small_stream

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
UNSAFE_CALLS = {
    "torch.load",
    "torch.save",
    "torch.jit.load",
    "torch.package",
    "numpy.load",
    "np.load",
    "pd.read_pickle",
    "pandas.read_pickle",
}
SAFE_IF = {  # these readers run no code when they are told so
    "np.load": ("allow_pickle", "False"),
    "numpy.load": ("allow_pickle", "False"),
    "torch.load": ("weights_only", "True"),
}


def test_the_package_has_no_reader_or_writer_of_pickles() -> None:
    package = Path(str(afaf.__file__)).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert not {name.name.split(".")[0] for name in node.names} & UNSAFE_MODULES, where
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in UNSAFE_MODULES, where
                assert not (node.module in ("torch", "numpy") and {name.name for name in node.names} & {"load", "save"}), where
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
                needed = SAFE_IF.get(name)
                assert name not in UNSAFE_CALLS or (needed is not None and keywords.get(needed[0]) == needed[1]), where
                assert keywords.get("allow_pickle", "False") == "False", where
                assert keywords.get("weights_only", "True") == "True", where


@pytest.mark.parametrize("method", ["afaf", "ewc", "ridge"])
def test_every_artefact_of_a_run_opens_with_a_safe_reader(method: str, tmp_path: Path) -> None:
    settings = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp", "run.checkpoint": 0}
    afaf.run(small_stream([2, 2]), method, device="cpu", out=tmp_path / "run", settings=settings, stop=StopToken())
    kinds = set()
    for path in sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        kinds.add(path.suffix)
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    file.get_tensor(name)
                assert json.loads(file.metadata()["afaf"])["format"] >= 1
        elif path.suffix == ".json":
            assert json.loads(path.read_text())["format"] == 1
        elif path.suffix == ".jsonl":
            assert all(json.loads(line)["event"] for line in path.read_text().splitlines())
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.verify()
        else:
            assert path.name == ".lock"
            assert path.read_bytes() == b""
    assert kinds == {".safetensors", ".json", ".jsonl", ".png", ""}
