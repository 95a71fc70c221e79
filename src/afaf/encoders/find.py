"""Encoders by name, from a file, or from a user's own module.

efficientnet-lite0                      the package of the extra `photos`
patches                                 filters that need no training, part of this package
timm:NAME, torchvision:NAME             a model of these packages, with its weights, where they are installed
transformers:NAME                       the same, of a hub name or a folder
encoder.pt2, encoder.onnx               a file of torch.export or ONNX
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afaf.encoders import efficientnet_lite, patches
from afaf.encoders.encoder import Encoder, Run, tensor_of
from afaf.encoders.identity import Identity, Preprocessing, weights_digest
from afaf.encoders.runtime import open_onnx, with_runtime
from afaf.errors import ConfigError, DataError, unknown

IMAGENET = Preprocessing(224, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
LIBRARIES = ("timm", "torchvision", "transformers")
NAMES = (efficientnet_lite.NAME, patches.NAME, *(f"{library}:NAME" for library in LIBRARIES), "FILE.pt2", "FILE.onnx")


def automatic() -> str:
    """The encoder that `auto` stands for: the one of the extra `photos` if it is installed, else filters that need no training."""
    return efficientnet_lite.NAME if efficientnet_lite.installed() else patches.NAME


def find_encoder(source: str | Path | nn.Module, device: torch.device | str = "cpu", preprocessing: Preprocessing | None = None) -> Encoder:
    """The encoder for a name, a file or a module. `preprocessing` overrides its own, which a module may have as attribute."""
    if isinstance(source, nn.Module):
        return _of_users_module(source, preprocessing or _own_preprocessing(source), device)
    name = str(source)
    if name == efficientnet_lite.NAME:
        lite0, digest = efficientnet_lite.load()
        identity = Identity(name, digest, efficientnet_lite.FEATURES, preprocessing or efficientnet_lite.PREPROCESSING)
        return with_runtime(Encoder(identity, _channels_last(lite0, device), device, lite0))
    if name == patches.NAME:
        return of_module(patches.Patches(), name, preprocessing or patches.PREPROCESSING, device)
    library, colon, model = name.partition(":")
    if colon and library in LIBRARIES:
        network, own = _LOADERS[library](_imported(library), model)
        return of_module(network, name, preprocessing or own, device)
    if name.endswith((".pt2", ".onnx")):
        return _of_file(Path(name).expanduser(), preprocessing, device)
    raise ConfigError(f"{unknown('encoder', name, NAMES)}. If it is a module of your own, pass the module with encoder= (in Python)")


def _own_preprocessing(module: nn.Module) -> Preprocessing:
    """A module's attribute `preprocessing`: a `Preprocessing`, or a mapping of its fields."""
    given = getattr(module, "preprocessing", None)
    if given is None or isinstance(given, Preprocessing):
        return given or IMAGENET
    try:
        return Preprocessing.parse(given)
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{type(module).__name__}.preprocessing cannot be used: give a dict of size (a whole number), mean and std (three numbers "
            f"each, of pixels in 0..255) and optionally crop (0 to 1), not {str(given)[:200]}"
        ) from None


def of_module(module: nn.Module, name: str, preprocessing: Preprocessing, device: torch.device | str = "cpu") -> Encoder:
    """An encoder of a module that gives features (n, d) or maps (n, d, h, w) for normalised images (n, 3, size, size)."""
    digest = weights_digest(module.state_dict())
    run = _channels_last(module.eval().requires_grad_(False), device)
    return with_runtime(Encoder(Identity(name, digest, _width(run, preprocessing.size, device, name), preprocessing), run, device, module))


def _of_users_module(module: nn.Module, preprocessing: Preprocessing, device: torch.device | str) -> Encoder:
    """The same for a module, which only changes its device. Its hooks may store features in it, so one thread at a time calls it."""
    name, digest = type(module).__name__, weights_digest(module.state_dict())
    module.to(device)

    def run(x: Tensor) -> Tensor:
        training = [part for part in module.modules() if part.training]
        try:
            return tensor_of(module.eval()(x))
        finally:
            for part in training:
                part.training = True

    return Encoder(Identity(name, digest, _width(run, preprocessing.size, device, name), preprocessing), run, device, module, threads=False)


def _channels_last(module: nn.Module, device: torch.device | str) -> Run:
    module = module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda x: tensor_of(module(x.contiguous(memory_format=torch.channels_last)))


def _width(run: Run, size: int, device: torch.device | str, name: str) -> int:
    """The number of features, found with an image of zeros."""
    try:
        with torch.inference_mode():
            return int(run(torch.zeros(1, 3, size, size, device=device)).shape[1])
    except Exception as error:
        raise DataError(f"the encoder {name} cannot be used on an image of {size} x {size}: {error}") from None


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ConfigError(f"the encoder needs {library}, which is not installed: pip install {library}") from None


def _timm(timm: Any, name: str) -> tuple[nn.Module, Preprocessing]:
    network = _pretrained("timm", name, lambda: timm.create_model(name, pretrained=True, num_classes=0))
    config = importlib.import_module("timm.data").resolve_model_data_config(network)
    own = _scaled(int(config["input_size"][-1]), config["mean"], config["std"], float(config.get("crop_pct", 1.0)))
    return network, own


def _torchvision(torchvision: Any, name: str) -> tuple[nn.Module, Preprocessing]:
    models = importlib.import_module("torchvision.models")
    weights = _pretrained("torchvision", name, lambda: models.get_model_weights(name).DEFAULT)
    network = _pretrained("torchvision", name, lambda: models.get_model(name, weights=weights))
    steps = weights.transforms()
    crop, resize = int(steps.crop_size[0]), int(steps.resize_size[0])
    return without_classifier(network), _scaled(crop, steps.mean, steps.std, min(1.0, crop / resize))


def _transformers(transformers: Any, name: str) -> tuple[nn.Module, Preprocessing]:
    network = _pretrained("transformers", name, lambda: transformers.AutoModel.from_pretrained(name))
    steps = _pretrained("transformers", name, lambda: transformers.AutoImageProcessor.from_pretrained(name))
    sizes = getattr(steps, "crop_size", None) or steps.size
    size = int(sizes.get("height") or sizes.get("shortest_edge"))
    return getattr(network, "vision_model", network), _scaled(size, steps.image_mean, steps.image_std)


_LOADERS: dict[str, Callable[[Any, str], tuple[nn.Module, Preprocessing]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}


def _pretrained(library: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # each library has its own errors for an unknown name or weights that cannot be fetched
        raise ConfigError(f"{library} cannot load '{name}' with its weights: {str(error)[:200]}") from None


def without_classifier(network: nn.Module) -> nn.Module:
    """The network with its last linear layer, which gives scores of classes, replaced by the identity."""
    for part in ("fc", "classifier", "head", "heads"):
        last = getattr(network, part, None)
        if isinstance(last, nn.Linear):
            setattr(network, part, nn.Identity())
            return network
        if isinstance(last, nn.Sequential):
            places = [i for i, layer in enumerate(last) if isinstance(layer, nn.Linear)]
            if places:
                last[places[-1]] = nn.Identity()
                return network
    raise ConfigError(f"{type(network).__name__} has no classifier that can be taken off: give its features as a module of your own")


def _scaled(size: int, mean: Any, std: Any, crop: float = 1.0) -> Preprocessing:
    """From means and standard deviations of pixels in 0..1, as these libraries give them."""
    return Preprocessing(size, tuple(255 * float(m) for m in mean), tuple(255 * float(s) for s in std), crop)


def _of_file(path: Path, preprocessing: Preprocessing | None, device: torch.device | str) -> Encoder:
    """The file may say how images are prepared: JSON named `preprocessing` in its metadata (ONNX) or extra files (torch.export)."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such encoder file")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    open_file = _open_onnx if path.suffix == ".onnx" else _open_export
    try:
        run, text, module = open_file(path, device)
        table = json.loads(text) if text else None
        own = Preprocessing.parse(table) if table else IMAGENET
    except ConfigError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not an encoder that can be used: {str(error)[:200]}") from None
    own = preprocessing or own
    return Encoder(Identity(str(path), digest, _width(run, own.size, device, str(path)), own), run, device, module)


def _open_export(path: Path, device: torch.device | str) -> tuple[Run, str, nn.Module | None]:
    extra = {"preprocessing": ""}
    module = torch.export.load(path, extra_files=extra).module().to(device)
    return lambda x: tensor_of(module(x)), extra["preprocessing"], module


def _open_onnx(path: Path, device: torch.device | str) -> tuple[Run, str, nn.Module | None]:
    run, preprocessing = open_onnx(path)
    return lambda x: tensor_of(run(x)), preprocessing, None
