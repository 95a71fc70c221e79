"""Parameters by name: how a method keeps them in `learner.memory`, where checkpoints carry them, and finds them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from afaf.network.forward import Parameters
from afaf.network.ops import Norm

Named = dict[str, Tensor]


def protected(parameters: Parameters) -> Named:
    """What a penalty holds on to: weights and biases of every layer but the output, gains and shifts of norms."""
    named = {f"weight/{l}": weight for l, weight in enumerate(parameters.weights[:-1], 1)}
    named |= {f"bias/{l}": bias for l, bias in enumerate(parameters.biases[:-1], 1)}
    for layer, norm in parameters.norms.items():
        named |= {f"gain/{layer}": norm.gain, f"shift/{layer}": norm.shift}
    return named


def trainable(parameters: Parameters, layers: Sequence[int]) -> Named:
    """What an optimiser may move: W_l of these l, all biases, gains and shifts of norms."""
    named = {f"weight/{l}": parameters.weights[l - 1] for l in layers}
    named |= {f"bias/{l}": bias for l, bias in enumerate(parameters.biases, 1)}
    for layer, norm in parameters.norms.items():
        named |= {f"gain/{layer}": norm.gain, f"shift/{layer}": norm.shift}
    return named


def weight_number(name: str) -> int | None:
    """The l of a name that stands for W_l; None for any other."""
    kind, number = name.split("/")
    return int(number) if kind == "weight" else None


def everything(parameters: Parameters) -> Named:
    """All that a network answers with: the protected parameters, the output layer and the statistics of norms."""
    last = len(parameters.weights)
    named = {**protected(parameters), f"weight/{last}": parameters.weights[-1], f"bias/{last}": parameters.biases[-1]}
    for layer, norm in parameters.norms.items():
        named |= {f"mean/{layer}": norm.mean, f"var/{layer}": norm.var}
    return named


def as_parameters(named: Named) -> Parameters:
    """The parameters that `everything` named."""

    def by_number(kind: str) -> dict[int, Tensor]:
        numbers = sorted(int(name.split("/")[1]) for name in named if name.startswith(f"{kind}/"))
        return {number: named[f"{kind}/{number}"] for number in numbers}

    gain, shift, mean, var = (by_number(kind) for kind in ("gain", "shift", "mean", "var"))
    norms = {layer: Norm(gain[layer], shift[layer], mean[layer], var[layer]) for layer in gain}
    return Parameters(list(by_number("weight").values()), list(by_number("bias").values()), norms)


def keep(memory: Named, prefix: str, named: Mapping[str, Tensor]) -> None:
    """Put copies under `prefix/...`: what happens to the originals later does not reach them."""
    memory.update({f"{prefix}/{name}": tensor.detach().clone() for name, tensor in named.items()})


def forget(memory: Named, prefix: str) -> None:
    """Remove what was kept under `prefix/...`."""
    for name in find(memory, prefix):
        del memory[f"{prefix}/{name}"]


def find(memory: Named, prefix: str) -> Named:
    """What was kept under `prefix/...`; empty if nothing was."""
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in memory.items() if name.startswith(f"{prefix}/")}
