"""Encode images with the workers of a Ray cluster: each returns the sums of a shard, and the driver adds them in order."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from afaf.cluster import connect, has_gpus, room, share, wait_for_worker
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Preprocessing
from afaf.errors import FileError
from afaf.files.urls import Place
from afaf.lifelong.encode_files import FileParts, OnBatch, report_unreadable
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.head_state import HeadSettings, Summed
from afaf.lifelong.life import Label
from afaf.streams.own import Unreadable

SMALLEST, LARGEST = 64, 8192  # images of a shard: a dying worker loses one shard, and each shard returns large sums
AHEAD = 2  # shards per worker that are submitted but not yet added

Files = Sequence[tuple[Place, Label]]


@dataclass(frozen=True)
class Teaching:
    """What a worker needs: the encoder, and how features become sums."""

    source: str
    digest: str
    preprocessing: Preprocessing
    head: HeadSettings
    validation: float
    device: str


def learn_on_cluster(
    model: EncodedModel, source: str, files: Files, *, on: str, device: str, unreadable: Unreadable, remedy: str, on_batch: OnBatch
) -> EncodedModel:
    """`model.learn` with the images encoded elsewhere. A shard whose worker dies is encoded again."""
    ray, ours = connect(on)
    try:
        gpu = has_gpus(ray, device)
        identity = model.identity
        teaching = Teaching(source, identity.digest, identity.preprocessing, model.head, model.life.validation, "cuda" if gpu else "cpu")
        wait_for_worker(ray, gpu)
        encode = ray.remote(max_retries=-1, **share(gpu))(encode_shard)
        workers = room(ray, gpu)
        seen, bad = Summed.empty(model.taught.features, model.head.class_sums), dict[Place, str]()
        for shard, (summed, unread) in _in_order(ray, encode, teaching, cut(files, workers), AHEAD * workers):
            seen, bad = seen + summed, bad | unread
            on_batch(len(shard))
            if bad and unreadable == "error":
                break
    finally:
        if ours:
            ray.shutdown()
    report_unreadable(bad, len(files), unreadable, remedy)
    return model.learn_sums(seen)


def cut(files: Files, workers: int) -> list[Files]:
    """Split the files into shards, several per worker."""
    size = min(max(math.ceil(len(files) / (4 * workers)), SMALLEST), LARGEST)
    return [files[start : start + size] for start in range(0, len(files), size)]


def _in_order(ray: Any, encode: Any, teaching: Teaching, shards: Sequence[Files], ahead: int) -> Iterator[tuple[Files, Any]]:
    """Yield each shard with its result, in the order of the shards; a few are submitted ahead."""
    left = iter(shards)
    waiting = [(shard, encode.remote(teaching, shard)) for shard in islice(left, ahead)]
    while waiting:
        shard, result = waiting.pop(0)
        yield shard, ray.get(result)
        waiting += [(more, encode.remote(teaching, more)) for more in islice(left, 1)]


_MODELS: dict[str, EncodedModel] = {}  # per process: encoders stay loaded between shards


def encode_shard(teaching: Teaching, files: Files) -> tuple[Summed, dict[Place, str]]:
    """The sums of some images, and those that cannot be read; runs in a worker."""
    key = repr(teaching)
    if key not in _MODELS:
        torch.set_num_threads(1)  # a worker has one CPU
        encoder = find_encoder(teaching.source, teaching.device, teaching.preprocessing)
        if encoder.identity.digest != teaching.digest:
            raise FileError(f"the encoder {teaching.source} has other weights on {socket.gethostname()} than here: install the same")
        model = EncodedModel.begin(encoder, teaching.head)
        model.life = replace(model.life, validation=teaching.validation)
        _MODELS[key] = model
    model = _MODELS[key]
    parts = FileParts(model.encoder, files, None, "", lambda images: None)
    return model.summed(parts), parts.bad
