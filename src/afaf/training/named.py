"""Parameters by name, and the tensors that a method keeps in `learner.memory`, which checkpoints store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from afaf.network.forward import Parameters
from afaf.network.ops import Norm

Named = dict[str, Tensor]


def protected_parameters(parameters: Parameters) -> Named:
    """The parameters that a penalty protects: weights and biases of every layer but the output, gains and shifts of norms."""
    named = {f"weight/{l}": weight for l, weight in enumerate(parameters.weights[:-1], 1)}
    named |= {f"bias/{l}": bias for l, bias in enumerate(parameters.biases[:-1], 1)}
    for layer, norm in parameters.norms.items():
        named |= {f"gain/{layer}": norm.gain, f"shift/{layer}": norm.shift}
    return named


def trainable(parameters: Parameters, layers: Sequence[int]) -> Named:
    """The parameters that an optimiser may change: W_l of these l, all biases, gains and shifts of norms."""
    named = {f"weight/{l}": parameters.weights[l - 1] for l in layers}
    named |= {f"bias/{l}": bias for l, bias in enumerate(parameters.biases, 1)}
    for layer, norm in parameters.norms.items():
        named |= {f"gain/{layer}": norm.gain, f"shift/{layer}": norm.shift}
    return named


def weight_number(name: str) -> int | None:
    """The l of a name that stands for W_l; None for any other name."""
    kind, number = name.split("/")
    return int(number) if kind == "weight" else None


def state_dict(parameters: Parameters) -> Named:
    """All parameters and the statistics of norms, by name."""
    last = len(parameters.weights)
    named = {**protected_parameters(parameters), f"weight/{last}": parameters.weights[-1], f"bias/{last}": parameters.biases[-1]}
    for layer, norm in parameters.norms.items():
        named |= {f"mean/{layer}": norm.mean, f"var/{layer}": norm.var}
    return named


def as_parameters(named: Named) -> Parameters:
    """The parameters from a `state_dict`."""

    def by_number(kind: str) -> dict[int, Tensor]:
        numbers = sorted(int(name.split("/")[1]) for name in named if name.startswith(f"{kind}/"))
        return {number: named[f"{kind}/{number}"] for number in numbers}

    gain, shift, mean, var = (by_number(kind) for kind in ("gain", "shift", "mean", "var"))
    norms = {layer: Norm(gain[layer], shift[layer], mean[layer], var[layer]) for layer in gain}
    return Parameters(list(by_number("weight").values()), list(by_number("bias").values()), norms)


def keep_tensors(memory: Named, prefix: str, named: Mapping[str, Tensor]) -> None:
    """Store copies under `prefix/...`."""
    memory.update({f"{prefix}/{name}": tensor.detach().clone() for name, tensor in named.items()})


def forget_tensors(memory: Named, prefix: str) -> None:
    """Remove the tensors under `prefix/...`."""
    for name in kept_tensors(memory, prefix):
        del memory[f"{prefix}/{name}"]


def kept_tensors(memory: Named, prefix: str) -> Named:
    """The tensors under `prefix/...`."""
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in memory.items() if name.startswith(f"{prefix}/")}
