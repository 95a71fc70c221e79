"""Encoders run by ONNX Runtime: ONNX files and, on request, PyTorch networks, which it runs faster on a CPU.

With AFAF_ENCODER_RUNTIME=onnxruntime a network is exported once, into the cache folder, and used only if its features agree with PyTorch's.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from afaf.encoders.encoder import PIECE, Encoder, Run, tensor_of
from afaf.errors import ConfigError, WriteError, unknown
from afaf.files import make_folders, write_whole
from afaf.streams.sources.source import cache_folder

VARIABLE = "AFAF_ENCODER_RUNTIME"
RUNTIMES = ("torch", "onnxruntime")
TOLERANCE = 1e-4  # relative to the largest feature of an image of noise


def with_runtime(encoder: Encoder) -> Encoder:
    """The encoder as it is, or run by ONNX Runtime if the environment asks for it; its identity stays the same."""
    asked = os.environ.get(VARIABLE) or RUNTIMES[0]
    if asked not in RUNTIMES:
        raise ConfigError(unknown(VARIABLE, asked, RUNTIMES))
    if asked == RUNTIMES[0] or encoder.module is None or encoder.device.type != "cpu":
        return encoder
    identity, size = encoder.identity, encoder.identity.preprocessing.size
    path = cache_folder() / "encoders" / f"{identity.digest[:32]}-{size}-{torch.__version__}.onnx"
    noise = np.random.default_rng(0).integers(0, 256, (PIECE, size, size, 3), dtype=np.uint8)
    expected = encoder.encode(noise)
    try:
        if not path.exists():
            make_folders(path.parent, f"unset {VARIABLE}")
            write_whole(path, _onnx_of(encoder.module, size))
        faster = Encoder(identity, open_onnx(path)[0], encoder.device, encoder.module, encoder.threads)
        difference = float((faster.encode(noise) - expected).abs().max())
    except WriteError:
        raise
    except Exception as error:  # torch.export and ONNX Runtime raise many types, and an encoder may be anything
        there = f"delete {path}, or " if path.exists() else ""
        raise ConfigError(f"ONNX Runtime cannot run {identity.name}: {there}unset {VARIABLE} ({str(error)[:200]})") from None
    if not difference <= TOLERANCE * float(expected.abs().max()):
        raise ConfigError(f"{path}: its features are not those of {identity.name}: delete it, or unset {VARIABLE}")
    faster.runtime = asked
    return faster


class _Features(nn.Module):
    """A network that returns the features of the wrapped one as a tensor."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return tensor_of(self.network(x))


def _onnx_of(network: nn.Module, size: int) -> bytes:
    """The network as PyTorch's own exporter writes it, for batches of any size."""
    _need("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that it does not need
    module = _Features(copy.deepcopy(network).to(memory_format=torch.contiguous_format))  # type: ignore[call-overload]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        shapes: Any = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.export.export(module.eval(), (torch.zeros(PIECE, 3, size, size),), dynamic_shapes=shapes)
        written: Any = torch.onnx.export(program, dynamo=True, verbose=False)
    data: bytes = written.model_proto.SerializeToString()
    return data


def open_onnx(path: Path) -> tuple[Run, str]:
    """An ONNX file's network as a function, and its metadata `preprocessing`."""
    session = onnx_session(path, 1)  # batches are encoded concurrently
    name, fixed = session.get_inputs()[0].name, session.get_inputs()[0].shape[0] == 1

    def run(x: Tensor) -> Tensor:
        pixels = np.ascontiguousarray(x.cpu().numpy())
        parts = np.split(pixels, len(pixels)) if fixed else [pixels]
        return torch.from_numpy(np.concatenate([session.run(None, {name: part})[0] for part in parts]))

    return run, session.get_modelmeta().custom_metadata_map.get("preprocessing", "")


def onnx_session(path: Path, threads: int) -> Any:
    """An ONNX Runtime session for a file, on the CPU; 0 threads: one per core."""
    runtime = _need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(f"ONNX needs {package}: pip install 'afaf[onnx]'") from None
