"""Labels of real pictures: boxes of what a viewer would ask about, and where the pictures come from.

`labels.json` holds no picture. A source is a clip of the folder of real clips, or a file in a package of Debian or
PyPI; boxes are (left, top, right, bottom) in pixels of the frame as it is decoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from evaluation.suites import SetName
from training.clips.truth import Box

LABELS = Path(__file__).with_name("labels.json")

HALVES: tuple[str, ...] = (*get_args(SetName), "all")

CLASSES = ("face", "hand", "person", "animal", "vehicle", "words", "screen", "moving", "object")
"""Classes of boxes. What moves counts as `moving` too, whatever its class."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of the real clips, and of the files that `python -m evaluation.real fetch` took from packages."""

    clips: Path
    pictures: Path


@dataclass(frozen=True, slots=True)
class Source:
    """A clip or a picture. `package` of the kind `debian`, `wheel` or `sdist` holds it at `path`, which has no version;
    "" for a file of the folder of clips. `publish`: its licence lets the project show it."""

    name: str
    path: str
    sha256: str
    licence: str
    publish: bool
    moves: bool
    package: str = ""
    kind: str = ""

    @property
    def half(self) -> SetName:
        """The half of the labels that it belongs to, by its name: the frames of one clip stay together."""
        first = hashlib.sha256(self.name.encode()).digest()[0]
        return "choose" if first % 2 else "report"

    def file(self, folders: Folders) -> Path:
        """Return where the file lies if it is there."""
        if self.package:
            return folders.pictures / self.package / self.path
        return folders.clips / self.path

    def absence(self, folders: Folders) -> str | None:
        """Return why the file cannot be used; None if it can."""
        file = self.file(folders)
        if not file.is_file():
            return "absent"
        if hashlib.sha256(file.read_bytes()).hexdigest() != self.sha256:
            return "another file than the one that was labelled"
        return None


@dataclass(frozen=True, slots=True)
class LabelledBox:
    """Something that a viewer would ask about."""

    name: str
    box: Box
    moving: bool

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that it counts for."""
        if self.moving and self.name != "moving":
            return self.name, "moving"
        return (self.name,)


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """A frame of a source: its decode index (0 for a picture), its (width, height) in pixels, and its boxes."""

    source: Source
    frame: int
    size_px: tuple[int, int]
    boxes: tuple[LabelledBox, ...]


def labelled_frames(half: str = "all", path: Path = LABELS) -> list[LabelledFrame]:
    """Return the labelled frames of a half, or of both, in the order of the file."""
    return [frame for frame in _read(path) if half in ("all", frame.source.half)]


def _read(path: Path) -> Iterator[LabelledFrame]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    sources = {entry["name"]: _source(entry) for entry in content["sources"]}
    for entry in content["frames"]:
        boxes = tuple(LabelledBox(box["class"], tuple(box["box"]), box.get("moving", False)) for box in entry["boxes"])
        width_px, height_px = entry["size"]
        yield LabelledFrame(sources[entry["source"]], entry.get("frame", 0), (width_px, height_px), boxes)


def _source(entry: dict[str, Any]) -> Source:
    return Source(
        name=entry["name"],
        path=entry.get("path", entry.get("clip", "")),
        sha256=entry["sha256"],
        licence=entry["licence"],
        publish=entry["publish"],
        moves=entry.get("moves", False),
        package=entry.get("package", ""),
        kind=entry.get("kind", ""),
    )
