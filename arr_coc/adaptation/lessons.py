"""`Lesson`: a picture to learn from and its questions; `TaughtPicture`: the targets of its tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.adaptation.cases import AllocatorCase, Box, texture_of, tile_shares
from arr_coc.adaptation.losses import attention_targets
from arr_coc.adaptation.teacher import AttentionTeacher
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import TILE_PX, TileGrid

HELD_OUT = "held out"
"""Kind of the cases that nothing is learned from, which figures are made of."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A picture uint8 RGB [H, W, 3], the questions about it, and the boxes for each question if they are known.

    Without boxes the model's own attention teaches.
    """

    image: npt.NDArray[np.uint8]
    questions: tuple[str, ...]
    boxes: tuple[tuple[Box, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedLesson:
    """A lesson that is read when its turn comes: `load` returns None if its picture cannot be read.

    Nothing is learned from one that is `held_out`.
    """

    load: Callable[[], Lesson | None]
    held_out: bool


@dataclass(frozen=True, slots=True)
class TaughtPicture:
    """A picture's texture, its questions, and the target relevance of its tiles for each: float32 [questions, gh, gw].

    `labelled`: by boxes, not by the model's attention.
    """

    texture: TextureArray
    questions: tuple[str, ...]
    targets: torch.Tensor
    held_out: bool
    labelled: bool

    @classmethod
    def from_boxes(cls, lesson: Lesson, *, held_out: bool, channels: str = "core13") -> TaughtPicture:
        """Return a lesson whose boxes are known; `channels`: profile of the texture. Raises ProfileError."""
        assert lesson.boxes is not None, "without boxes the model is asked"
        shape = TileGrid.of(*lesson.image.shape[:2]).shape
        targets = [torch.from_numpy(tile_shares(boxes, shape, (TILE_PX, TILE_PX))).float() for boxes in lesson.boxes]
        texture = texture_of(lesson.image, channels)
        return cls(texture, lesson.questions, torch.stack(targets), held_out, labelled=True)

    @classmethod
    def from_attention(
        cls, teacher: AttentionTeacher, lesson: Lesson, *, held_out: bool, channels: str = "core13"
    ) -> TaughtPicture:
        """Return a lesson once its teacher was asked.

        Args:
            teacher: Model whose attention is the target.
            lesson: Picture and questions.
            held_out: Whether nothing is learned from it.
            channels: Profile of the texture.

        Raises:
            ProfileError: The profile does not exist. Raises also as `AttentionTeacher.attention`.
        """
        shape = TileGrid.of(*lesson.image.shape[:2]).shape
        teacher.show(lesson.image)
        targets = [attention_targets(_on_grid(teacher.attention(question), shape)) for question in lesson.questions]
        texture = texture_of(lesson.image, channels)
        return cls(texture, lesson.questions, torch.stack(targets), held_out, labelled=False)

    def cases(self) -> Iterator[AllocatorCase]:
        """One for each question."""
        kind = HELD_OUT if self.held_out else ""
        for question, target in zip(self.questions, self.targets, strict=True):
            yield AllocatorCase(self.texture, target, question, kind)

    def state(self) -> dict[str, Any]:
        """Tensors and texts, to be kept in a file."""
        return {
            "channels": self.texture.channels,
            "entropy": self.texture.entropy,
            "questions": list(self.questions),
            "wanted": self.targets,
            "held_out": self.held_out,
            "labelled": self.labelled,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TaughtPicture:
        """Return the picture that `state` was made of. Raises KeyError and TypeError if `state` is not one."""
        texture = TextureArray(state["channels"], state["entropy"])
        return cls(
            texture, tuple(state["questions"]), state["wanted"], bool(state["held_out"]), bool(state["labelled"])
        )


def cases_of_pictures(pictures: Sequence[TaughtPicture], *, held_out: bool) -> list[AllocatorCase]:
    """Return the cases of all pictures that are held out, or of all others."""
    return [case for picture in pictures if picture.held_out == held_out for case in picture.cases()]


def _on_grid(attention: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return a map of the model's own tiles on the allocator's: some models' tiles are not 32 pixels wide."""
    if tuple(attention.shape) == shape:
        return attention
    return torch.nn.functional.interpolate(attention[None, None], shape, mode="bilinear")[0, 0]
