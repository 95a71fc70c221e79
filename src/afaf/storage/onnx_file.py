"""A model as an ONNX file: its layers written node by node, with labels in the metadata. Needs the extra `onnx`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from afaf.errors import ConfigError
from afaf.storage.compacted import Inference
from afaf.version import __version__

OPSET, IR = 17, 9  # read by ONNX Runtime 1.14 and later


def need(name: str) -> Any:
    """A package that comes with the extra."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"this needs the package {name}, which is not installed: pip install 'afaf[onnx]'") from None


class Graph:
    """Nodes and constants, one after the other."""

    def __init__(self) -> None:
        self.onnx = need("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, tensor: Tensor | Any) -> str:
        array = tensor.detach().contiguous().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        to = to or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [to], **attributes))
        return to


def onnx_bytes(inference: Inference, about: dict[str, Any]) -> bytes:
    """The bytes of the file; `about` goes into its metadata beside the labels."""
    data: bytes = onnx_model(inference, about).SerializeToString()
    return data


def onnx_model(inference: Inference, about: dict[str, Any]) -> Any:
    graph = Graph()
    onnx, helper, kinds = graph.onnx, graph.onnx.helper, graph.onnx.TensorProto
    logits = _layers(graph, inference, _prepared(graph, inference))
    graph.node("Identity", logits, to="logits")
    cooled = graph.node("Mul", logits, graph.constant("one_over_temperature", torch.tensor(1 / inference.temperature)))
    graph.node("Softmax", cooled, to="probabilities", axis=1)
    taken = kinds.UINT8 if inference.bytes_in else kinds.FLOAT
    inputs = [helper.make_tensor_value_info("images", taken, ["n", *inference.input_shape])]
    outputs = [helper.make_tensor_value_info(name, kinds.FLOAT, ["n", len(inference.labels)]) for name in ("logits", "probabilities")]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "afaf", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="afaf",
        producer_version=__version__,
    )
    helper.set_model_props(model, {"labels": json.dumps(inference.labels), "afaf": json.dumps(about)})
    onnx.checker.check_model(model, full_check=True)
    return model


def _prepared(graph: Graph, inference: Inference) -> str:
    """From pixels to the input of the first layer."""
    scale, shift = inference.scale_and_shift()
    h = _as_floats(graph, "images") if inference.bytes_in else "images"
    h = graph.node("Mul", h, graph.constant("scale", scale))
    h = graph.node("Add", h, graph.constant("shift", shift))
    if len(inference.spec.input_shape) == 1:
        return h
    h = graph.node("Transpose", h, perm=[0, 3, 1, 2])
    channels = inference.spec.input_shape[0]
    if inference.input_shape[-1] != channels:
        h = graph.node("Concat", *[h] * channels, axis=1)
    return h


def _as_floats(graph: Graph, h: str) -> str:
    graph.nodes.append(graph.onnx.helper.make_node("Cast", [h], ["floats"], to=graph.onnx.TensorProto.FLOAT))
    return "floats"


def _layers(graph: Graph, inference: Inference, h: str) -> str:
    spec, parameters = inference.spec, inference.parameters
    values = {1: h}
    for number, layer in enumerate(spec.layers[1:], 2):
        below = [values[source] for source in layer.inputs]
        if layer.edge is None:
            h = graph.node("Sum", *below)
        else:
            weight, bias = parameters.weights[layer.edge - 1], parameters.biases[layer.edge - 1]
            h = spec.edge(layer.edge).product.export(graph, below[0], weight, bias, layer.edge)
        for operation in layer.ops:
            h = operation.export(graph, h, parameters.norms.get(number), number)
        values[number] = h
    return h
