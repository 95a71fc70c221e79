"""Export a module from images to logits and probabilities as the bytes of a torch.export program, or of ONNX (needs the extra `onnx`)."""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from afaf.errors import ConfigError
from afaf.files.marks import PROGRAM
from afaf.version import __version__

OPSET, IR = 18, 8  # read by ONNX Runtime 1.14 and later


def need(name: str) -> Any:
    """Import a package of the extra `onnx`."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"this needs the package {name}, which is not installed: pip install 'afaf[onnx]'") from None


def exported_program(module: nn.Module, example: Tensor) -> Any:
    """The module as a torch.export program, for a batch of any size; `example` is a batch of two."""
    with torch.no_grad():
        program = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    return program


def torch_bytes(program: Any, labels: Sequence[Any], about: dict[str, Any]) -> bytes:
    """The program's file, with labels.json and afaf.json as extra files."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about views, whose whole tensors are saved
        torch.export.save(program, buffer, extra_files={"labels.json": json.dumps(labels), "afaf.json": json.dumps(about)})
    return buffer.getvalue()


def onnx_bytes(program: Any, labels: Sequence[Any], about: dict[str, Any]) -> bytes:
    """The program's ONNX file, from PyTorch's own exporter, which needs onnxscript; `labels` and `about` are in its metadata.

    A weight used in several places is stored once, and the exporter's notes on every operation are left out.
    """
    need("onnxscript")
    passes = need("onnx_ir.passes.common")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports missing packages that it does not need
    names: Any = {"input_names": ["images"], "output_names": ["logits", "probabilities"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False, **names)
    assert written is not None
    for tidy in (passes.DeduplicateInitializersPass(size_limit=sys.maxsize), passes.ClearMetadataAndDocStringPass()):
        tidy(written.model)
    proto = written.model_proto
    proto.ir_version, proto.producer_name, proto.producer_version = IR, PROGRAM, __version__
    _name_batch(proto.graph)
    need("onnx").helper.set_model_props(proto, {"labels": json.dumps(labels), "afaf": json.dumps(about)})
    data: bytes = proto.SerializeToString()
    return data


def _name_batch(graph: Any) -> None:
    """Name the first dimension `batch`; the exporter gives it a name such as s34."""
    shapes = [value.type.tensor_type.shape for value in (*graph.input, *graph.output, *graph.value_info)]
    symbol = shapes[0].dim[0].dim_param
    for dim in (dim for shape in shapes for dim in shape.dim if dim.dim_param):
        dim.dim_param = dim.dim_param.replace(symbol, "batch")
