"""`afaf learn`, `forget` and `merge` for models of an encoder and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from afaf.checked import build
from afaf.cli.answers import SKIP, counted, encoder_at, if_unreadable
from afaf.cli.consoles import ERR, say
from afaf.cluster import is_cluster
from afaf.encoders import patches
from afaf.encoders.efficientnet_lite import INSTALL
from afaf.errors import ConfigError, DataError
from afaf.files.urls import Place, is_url
from afaf.lifelong.choose import AUTO, NONE, chosen_encoder, trains_network
from afaf.lifelong.encode_cluster import learn_on_cluster
from afaf.lifelong.encode_files import FileParts
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.head_state import HeadSettings, default_head
from afaf.lifelong.model_store import check_place, has_encoder, make_place, open_encoded, open_model, replace_model, told_if_interrupted
from afaf.lifelong.settings import METHOD
from afaf.lifelong.soundness import TAKEN_OUT
from afaf.runs.config import Table, read_toml
from afaf.streams.own import find_class_folders
from afaf.streams.sources.listed import files_below, manifest_files
from afaf.text import printable_name


@dataclass(frozen=True)
class Encoding:
    """The section [encoder] of a TOML file: an encoder, and the head on it."""

    name: str = AUTO
    head: str | None = None
    options: dict[str, float] = field(default_factory=dict)  # of the head
    balance: bool | None = None
    class_sums: bool | None = None

    def head_settings(self, otherwise: HeadSettings) -> HeadSettings:
        """The head, with settings that are not given here from `otherwise`."""
        said: dict[str, Any] = {"name": self.head, "options": self.options or None, "balance": self.balance, "class_sums": self.class_sums}
        return replace(otherwise, **{name: value for name, value in said.items() if value is not None})


def read_encoding(config: Path | None, encoder: str | None, method: str | None, class_sums: bool) -> tuple[Encoding, Table]:
    """The section [encoder] of a TOML file, overridden by options of the command line; and the other sections, for a network."""
    rest = {} if config is None else read_toml(config)
    found: Encoding = build(Encoding, rest.pop("encoder", {}), "encoder")
    return replace(found, name=encoder or found.name, head=method or found.head, class_sums=class_sums or found.class_sums), rest


def encoder_for(path: Path, how: Encoding, given: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The encoder that a call of learn uses, if any, and whether a network is trained. Prints the choice and how to change it."""
    options = [
        "settings (--set, --config)" if name == "settings" else f"--{name.replace('_', '-')}"
        for name in given
        if given[name] is not None and given[name] is not False
    ]
    if path.exists():
        return _encoder_of(path, how, options), not has_encoder(path)
    name = chosen_encoder(how.name, how.head, options)
    if name is None:
        return None, True
    trains = trains_network(how.head, options)
    missing = how.name == AUTO and name == patches.NAME
    advice = f"for photographs, a pre-trained encoder is far better: {INSTALL}" if missing else "--encoder none trains a network instead"
    above = f"a network on its features, method {how.head or METHOD}" if trains else f"head {how.head or default_head(str(name))}; {advice}"
    say(f"encoder {name}, {above}", ERR)
    return str(name), trains


def _encoder_of(path: Path, how: Encoding, options: Sequence[str]) -> str | None:
    """The encoder of an existing model, as given or as the model names it; options that would change the model's settings are refused."""
    if not has_encoder(path):
        if how.name in (AUTO, NONE):
            return None
        if open_model(path).identity is None:
            raise ConfigError(f"--encoder: {path} has no encoder: leave that out")
        return how.name
    model = open_encoded(path)
    late = [*options, *(["--encoder none"] if how.name == NONE else [])]
    if how.head_settings(model.head) != model.head:
        late.append("--method" if how.head not in (None, model.head.name) else "options of the head")
    if late:
        raise ConfigError(
            f"{', '.join(late)}: decided when a model is begun, and {path} has an encoder: leave that out, or name a new file"
        )
    return model.identity.name if how.name == AUTO else how.name


def labelled_files(source: str) -> Sequence[tuple[Place, str]]:
    """The images of a folder of class folders, of such a folder behind a URL, or of a manifest."""
    if is_url(source):
        return files_below(source)
    path = Path(source).expanduser()
    return manifest_files(path) if path.is_file() else find_class_folders(path).files


def prepare_photos(
    path: Path,
    files: Sequence[tuple[Place, str]],
    encoder: str,
    how: Encoding,
    device: str,
    cache: Path | None,
    skip_unreadable: bool,
    on: str = "local",
) -> tuple[EncodedModel, Callable[[], EncodedModel]]:
    """The model before a call of learn, and the function that teaches it; classes may be new or known."""
    unreadable = if_unreadable(skip_unreadable)
    wanted, device = device, "auto" if is_cluster(on) else device  # the driver may have another device than the workers
    if path.exists():
        model = open_encoded(path)
        model.attach(encoder_at(encoder, device, cache, model.identity))
    else:
        model = EncodedModel.begin(encoder_at(encoder, device, cache), how.head_settings(HeadSettings(default_head(encoder))))
    labelled = [(file, model.life.label_of(label)) for file, label in files]

    def teach() -> EncodedModel:
        with counted("learning", len(files)) as on_batch:
            if is_cluster(on):
                where: Any = {"on": on, "device": wanted, "unreadable": unreadable, "remedy": SKIP, "on_batch": on_batch}
                return learn_on_cluster(model, encoder, labelled, **where)
            return model.learn(FileParts(model.encoder, labelled, unreadable, SKIP, on_batch))

    return model, teach


def show_photos_learned(path: Path, model: EncodedModel, as_json: bool) -> dict[str, Any]:
    """Print the result of the call; return it as data."""
    note, life = model.life.tasks[-1], model.life
    new = [str(label) for label in life.labels[-1]]
    about: dict[str, Any] = {"model": str(path), "call": len(life.tasks), "new_classes": new, "classes": len(life.known)}
    about |= {"images": note.images + note.held_out, "held_out": note.held_out, "accuracy": note.accuracy, "bytes": path.stat().st_size}
    if as_json:
        return about
    shown = (", ".join(map(printable_name, new[:8])) + (f" and {len(new) - 8} more" if len(new) > 8 else "")) or "no new class"
    known = "1 class" if len(life.known) == 1 else f"{len(life.known)} classes"
    say(f"call {len(life.tasks)} learned: {shown}; {note.images + note.held_out} images; {known} known")
    if note.accuracy is not None:
        say(f"{note.accuracy:.1f} % of {note.held_out} of these images are right with a head that has not learned them")
    return about


def forget_photos(folder: Path, path: Path, encoder: str | None, cache: Path | None, device: str, skip_unreadable: bool) -> None:
    """Take the images of a folder out of a model, exactly."""
    with told_if_interrupted(path) as before:
        found = find_class_folders(folder)
        model = _opened(path)
        check_place(path)
        model.attach(encoder_at(encoder or model.identity.name, device, cache, model.identity))
        files = [(file, model.life.label_of(label)) for file, label in found.files]
        with counted("forgetting", len(files)) as on_batch:
            parts = FileParts(model.encoder, files, if_unreadable(skip_unreadable), SKIP, on_batch)
            try:
                left = model.forget(parts)
            except DataError as error:
                raise DataError(f"the images of {folder} cannot be taken out of {path}: {error}") from None
        replace_model(path, left, before)
    gone = [str(label) for label in model.life.known if label not in left.life.known]
    lost = f"; gone: {', '.join(map(printable_name, gone))}" if gone else ""
    say(f"{len(files)} images are taken out, as if they had never been learned{lost}")
    say("afaf keeps no images and cannot know whether all of these were learned: the model is right only if they were")


def merge_models(paths: Sequence[Path], path: Path) -> None:
    """Merge several models and write the result."""
    with told_if_interrupted(path) as before:
        if path.exists():
            raise ConfigError(f"{path} is there already: name a new file for the merged model")
        if len(paths) < 2:
            raise ConfigError("name at least two models to merge")
        merged = _sound(paths[0])
        for other in paths[1:]:
            model = _sound(other)
            try:
                merged = merged.merge(model)
            except DataError as error:
                raise DataError(f"{other} cannot be merged with {paths[0]}: {error}") from None
        make_place(path)
        replace_model(path, merged, before)
    say(f"merged {len(paths)} models: {len(merged.life.known)} classes; wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _sound(path: Path) -> EncodedModel:
    """Open a model to merge and check it: sums that no images have would spoil the others', possibly beyond detection."""
    model = _opened(path)
    if wrong := model.problems():
        raise DataError(f"{path} cannot be merged: {wrong[0]}; {TAKEN_OUT}")
    return model


def _opened(path: Path) -> EncodedModel:
    if path.is_file() and not has_encoder(path):
        raise ConfigError(f"{path} is not a model with an encoder: only these can forget images or be merged")
    if not path.is_file():
        raise ConfigError(f"{path}: no such model file")
    return open_encoded(path)
