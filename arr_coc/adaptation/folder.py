"""`AdaptFolder`: files of an adaptation, from its beginning to the finished allocator."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from arr_coc.adaptation.lessons import TaughtPicture
from arr_coc.adaptation.training_run import CHECKPOINT
from arr_coc.bounded_json import read_json
from arr_coc.errors import ModelError, OptionError
from arr_coc.layer import write_whole

ABOUT_FILE = "adapt.json"
PICTURES_FILE = "pictures.pt"

_NAMED = 3
"""Files that a message names."""


class AdaptFolder:
    """Folder in which an allocator is made: `ARRCOCLayer.from_pretrained` reads it once the allocator is saved.

    `adapt.json` lists its inputs, and its figures once it is finished; until then `pictures.pt` and the
    trainer's checkpoint are what the next run goes on from. Every file is written whole or not at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, made_of: Mapping[str, str], *, resume: bool) -> None:
        """Raise OptionError if the folder cannot be begun, or with `resume` gone on with; changes nothing.

        `made_of` is as much of what `begin` is given as is known before a model is loaded. A run that saved nothing is
        begun anew.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OptionError(f"{self.path} is a file", "name a folder for the allocator")
        if self.path.is_dir():
            entries = sorted(path.name for path in self.path.iterdir())
        else:
            entries = []
        about = self._about()
        if entries and about is None:
            names = ", ".join(entries[:_NAMED]) + (", ..." if len(entries) > _NAMED else "")
            raise OptionError(f"{self.path} holds something else ({names})", "name a new or empty folder")
        if about is None:
            if resume:
                raise OptionError(f"{self.path} holds nothing to go on with", "leave out --resume to begin")
            return
        if about["finished"]:
            raise OptionError(
                f"the allocator in {self.path} is finished", "use it with --allocator, or name a new folder"
            )
        if self._has_saved:
            if not resume:
                raise OptionError(
                    f"{self.path} holds an unfinished run",
                    "add --resume to go on, or remove the folder to begin anew",
                )
            self._check_same(about["made_of"], made_of)

    def begin(self, made_of: Mapping[str, str]) -> None:
        """Begin, or resume an earlier run made of the same things; `made_of` maps each thing's name to its value.

        Raises OptionError if it was made of something else, and OSError if the folder cannot be written.
        """
        about = self._about()
        if about is None or not self._has_saved:
            self.path.mkdir(parents=True, exist_ok=True)
            self._write_about({"finished": False, "made_of": dict(made_of)})
            return
        self._check_same(about["made_of"], made_of)

    def _check_same(self, before: Mapping[str, str], made_of: Mapping[str, str]) -> None:
        other = sorted(name for name, value in made_of.items() if before.get(name) != value)
        if other:
            raise OptionError(
                f"{self.path} was begun with other {other[0]}",
                "give what it was begun with, or remove the folder to begin anew",
            )

    def finish(self, made_of: Mapping[str, str], figures: Mapping[str, Any]) -> None:
        """Keep what was measured, and remove what only an unfinished run needs."""
        self._write_about({"finished": True, "made_of": dict(made_of), **figures})
        self.remove_saved()

    def remove_saved(self) -> None:
        """Remove what the next run would go on from: it begins anew."""
        for name in (CHECKPOINT, PICTURES_FILE):
            with suppress(FileNotFoundError):
                (self.path / name).unlink()

    def save_pictures(self, pictures: Sequence[TaughtPicture], lesson_count: int, spent_s: float) -> None:
        """Keep the pictures that were asked about; `lesson_count` lessons are done, which took `spent_s`."""
        state = {"pictures": [picture.state() for picture in pictures], "planned": lesson_count, "spent_s": spent_s}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.path / PICTURES_FILE, buffer.getvalue())

    def load_pictures(self) -> tuple[list[TaughtPicture], int, float]:
        """Read the pictures that `save_pictures` wrote, if any. Raises ModelError for a damaged file."""
        path = self.path / PICTURES_FILE
        if not path.is_file():
            return [], 0, 0.0
        try:
            state = torch.load(path, weights_only=True)
            pictures = [TaughtPicture.from_state(picture_state) for picture_state in state["pictures"]]
            return pictures, int(state["planned"]), float(state["spent_s"])
        except (RuntimeError, ValueError, TypeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise ModelError(f"{path} is damaged", "remove it to ask the model again, or name a new folder") from error

    @property
    def _has_saved(self) -> bool:
        """True if there is something that the next run goes on from."""
        return self.has_checkpoint or (self.path / PICTURES_FILE).is_file()

    @property
    def has_checkpoint(self) -> bool:
        """True if an earlier run has learned for some steps."""
        return (self.path / CHECKPOINT).is_file()

    def _about(self) -> dict[str, Any] | None:
        """Read `adapt.json`; None if it is missing or not an object."""
        try:
            about = read_json(self.path / ABOUT_FILE)
            is_valid = isinstance(about["finished"], bool) and isinstance(about["made_of"], dict)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return about if is_valid else None

    def _write_about(self, about: Mapping[str, Any]) -> None:
        write_whole(self.path / ABOUT_FILE, (json.dumps(about, indent=2) + "\n").encode())
