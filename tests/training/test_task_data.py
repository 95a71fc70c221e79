"""What an engine reads: normalised, cropped and flipped as a moment demands, the same on every reading."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from afaf.errors import DataError
from afaf.streams.tasks import Augment, Preparation, Split
from afaf.training.cuda.kernels import can_crop
from afaf.training.task_data import PAD, RngScope, TaskData


def colour_split(n: int = 6, side: int = 12, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8), np.arange(n) % 2)


def test_pixels_are_normalised_per_channel() -> None:
    split = colour_split()
    preparation = Preparation((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    x, labels = TaskData([(split, preparation)]).batch(torch.arange(6))
    expected = (split.images / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.1, 0.2, 0.3])
    assert np.allclose(x.numpy(), np.moveaxis(expected, -1, 1), atol=1e-5)
    assert labels.tolist() == split.labels.tolist()


def test_crops_are_windows_of_the_reflected_image() -> None:
    """Every augmented image is found among the 81 crops, flipped or not, of NumPy's reflect padding; many different ones occur."""
    split = colour_split(n=40)
    data = TaskData([(split, Preparation((0.0,), (1.0,), augment="crop-flip"))])
    x, _ = data.batch(torch.arange(40), RngScope(0, 1, 0, 3))
    pixels = (x * 255).round().to(torch.uint8).numpy()
    seen = set()
    for image, out in zip(split.images, pixels, strict=True):
        padded = np.pad(np.moveaxis(image, -1, 0), ((0, 0), (PAD, PAD), (PAD, PAD)), mode="reflect")
        windows = {
            (dy, dx, flip): padded[:, dy : dy + 12, dx : dx + 12][:, :, :: -1 if flip else 1]
            for dy in range(9)
            for dx in range(9)
            for flip in (False, True)
        }
        matches = [place for place, window in windows.items() if np.array_equal(window, out)]
        assert matches
        seen.add(matches[0])
    assert len(seen) > 25
    assert len({flip for _, _, flip in seen}) == 2


def test_rotations_are_those_of_the_cropped_image() -> None:
    """Sample 4 i + v is image i as it would be cropped without rotations, turned v times; its label is the image's plus v."""
    split = Split(colour_split().images, 4 * np.arange(6))
    plain, turned = (TaskData([(split, Preparation(augment="crop-flip"))], rotations=n) for n in (1, 4))
    for scope in (None, RngScope(0, 1, 0, 3)):
        x, labels = turned.batch(torch.arange(24), scope)
        upright, _ = plain.batch(torch.arange(6), scope)
        for sample in range(24):
            assert torch.equal(x[sample], torch.rot90(upright[sample // 4], sample % 4, (1, 2)))
        assert labels.tolist() == list(range(24))
    order = turned.order(RngScope(0, 1)).reshape(6, 4)
    assert torch.equal(order % 4, torch.arange(4).expand(6, 4))  # a step has all rotations of its images
    assert torch.equal(order[:, 0] // 4, plain.order(RngScope(0, 1)))


def test_images_that_are_not_square_have_no_rotations() -> None:
    split = colour_split()
    with pytest.raises(DataError, match=r"parts\.rotations"):
        TaskData([(Split(split.images[:, :6], split.labels), Preparation())], rotations=4)


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5])
def test_small_images_are_reflected_as_often_as_it_takes(side: int) -> None:
    split = colour_split(n=40, side=side)
    data = TaskData([(split, Preparation((0.0,) * 3, (1.0,) * 3, augment="crop-flip"))])
    x, _ = data.batch(torch.arange(40), RngScope(0, 1))
    for image, out in zip(split.images, (x * 255).round().to(torch.uint8).numpy(), strict=True):
        padded = np.pad(np.moveaxis(image, -1, 0), ((0, 0), (PAD, PAD), (PAD, PAD)), mode="reflect")
        crops = [padded[:, dy : dy + side, dx : dx + side] for dy in range(9) for dx in range(9)]
        assert any(np.array_equal(out, crop) or np.array_equal(out, crop[:, :, ::-1]) for crop in crops)
    assert can_crop(data) == (side > PAD)  # a GPU's kernel mirrors once


def test_a_moment_can_be_replayed_in_any_batches() -> None:
    data = TaskData([(colour_split(), Preparation((0.0,), (1.0,), augment="crop-flip"))])
    now, later = RngScope(0, 1, 0, 3), RngScope(0, 1, 0, 4)
    whole, _ = data.batch(torch.arange(6), now)
    assert torch.equal(data.batch(torch.tensor([4, 1]), now)[0], whole[[4, 1]])
    assert not torch.equal(data.batch(torch.arange(6), later)[0], whole)
    assert torch.equal(data.order(now), data.order(now))
    assert sorted(data.order(now).tolist()) == list(range(6))


def test_without_a_moment_nothing_is_augmented() -> None:
    split = colour_split()
    x, _ = TaskData([(split, Preparation((0.0,), (1.0,), augment="crop-flip"))]).batch(torch.arange(6))
    assert np.array_equal((x * 255).round().to(torch.uint8).numpy(), np.moveaxis(split.images, -1, 1))


def test_joined_parts_keep_their_own_preparation() -> None:
    """Grey images beside colour ones, each normalised its own way, only the colour ones augmented."""
    colour = colour_split(n=4)
    grey = Split(colour.images[:, :, :, :1].copy(), np.array([2, 3, 2, 3]))
    parts = [(colour, Preparation((0.5,), (0.25,), augment="crop-flip")), (grey, Preparation((0.1,), (2.0,), channels=3))]
    joined = TaskData(parts)
    index = torch.tensor([5, 0, 7, 3])
    x, labels = joined.batch(index, RngScope(1, 2))
    alone = [TaskData([part]) for part in parts]
    assert torch.allclose(x[[0, 2]], alone[1].batch(torch.tensor([1, 3]))[0])
    assert torch.allclose(x[[1, 3]], alone[0].batch(torch.tensor([0, 3]), RngScope(1, 2))[0])
    assert labels.tolist() == [3, 0, 3, 1]


def test_a_part_beyond_the_memory_budget_stays_on_the_host_and_reads_the_same() -> None:
    split, preparation = colour_split(), Preparation((0.5,), (0.25,), augment="crop-flip")
    resident, streamed = TaskData([(split, preparation)]), TaskData([(split, preparation)], resident_bytes=10)
    for scope in (None, RngScope(0, 1)):
        assert torch.equal(resident.batch(torch.tensor([3, 1]), scope)[0], streamed.batch(torch.tensor([3, 1]), scope)[0])


def test_images_of_a_class_come_un_augmented() -> None:
    split = colour_split(n=9)
    data = TaskData([(split, Preparation((0.0,), (1.0,), augment="crop-flip"))])
    found = torch.cat(list(data.batches(size=2, class_id=1)))
    assert torch.equal(found, data.batch(torch.tensor([1, 3, 5, 7]))[0])


def test_joined_parts_may_hold_bytes_and_fractions() -> None:
    """The same images as bytes and as numbers from 0 to 1 look the same, side by side as apart."""
    stored = colour_split()
    fractions = Split(stored.images.astype(np.float32) / 255, stored.labels)
    preparation = Preparation((0.5,), (0.25,))
    alone, _ = TaskData([(stored, preparation)]).batch(torch.arange(6))
    for parts in ([stored, fractions], [fractions, stored]):
        x, _ = TaskData([(part, preparation) for part in parts]).batch(torch.arange(12))
        assert torch.allclose(x[:6], alone, atol=1e-5)
        assert torch.allclose(x[6:], alone, atol=1e-5)


def test_resized_crops_are_windows_of_the_image() -> None:
    """Of an image that rises evenly, a window rises evenly: half to all as steep, within the image's values, turned round if flipped."""
    side = 16
    down, right = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    images = np.repeat(np.stack([down, right], -1)[None].astype(np.float32), 200, 0)
    data = TaskData([(Split(images, np.zeros(200, np.int64)), Preparation(augment="resized-crop-flip"))], dtype=torch.float64)
    scope, everything = RngScope(3, 1), torch.arange(200)
    x = data.batch(everything, scope)[0]
    assert float(x.min()) >= 0
    assert float(x.max()) <= side - 1
    steep = (x[:, 0, 9, :] - x[:, 0, 6, :])[:, 0] / 3, (x[:, 1, :, 9] - x[:, 1, :, 6])[:, 0] / 3
    assert float(steep[0].min()) >= 0.5 - 1e-9
    assert float(steep[0].max()) <= 1 + 1e-9
    assert torch.allclose(steep[0], steep[1].abs())  # a square
    assert 0.3 < float((steep[1] < 0).float().mean()) < 0.7
    assert torch.allclose(x[:, 0], x[:, 0, :, :1].expand(-1, -1, side))  # rows of the window are rows of the image
    assert len({round(float(value), 6) for value in x[:, 0, 8, 8]}) > 100
    assert torch.equal(data.batch(everything[50:60], scope)[0], x[50:60])
    assert not torch.equal(data.batch(everything, RngScope(3, 1, epoch=1))[0], x)
    assert torch.equal(data.batch(everything)[0], torch.from_numpy(images).double().permute(0, 3, 1, 2))


@pytest.mark.parametrize("augment", ["none", "crop-flip", "resized-crop-flip"])
def test_views_of_an_image_are_augmented_as_images_of_their_own(augment: Augment) -> None:
    """As if each image were there twice, but next to each other in an epoch's order."""
    split, scope = colour_split(), RngScope(3, 1)
    doubled = Split(split.images.repeat(2, 0), split.labels.repeat(2))
    once, copies = (TaskData([(part, Preparation(augment=augment))]) for part in (split, doubled))
    views = once.with_views(2)
    order = views.order(scope)
    assert torch.equal(order.view(-1, 2), 2 * once.order(scope)[:, None] + torch.arange(2))
    for seen, expected in zip(views.batch(order, scope), copies.batch(order, scope), strict=True):
        assert torch.equal(seen, expected)
