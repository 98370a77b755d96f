"""Questions of a file about pictures of this machine, which viewers of the compare page may choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arr_coc.adaptation.question_lines import QuestionLine, read_question_lines
from stream.answer.agreement import words_of
from stream.errors import ConfigError
from stream.extensions.web.uploads.decoder import PictureRefused, read_picture
from stream.scenes.stills import KnownAnswer

if TYPE_CHECKING:
    from arr_coc.adaptation.cases import Box
    from stream.extensions.web.uploads.store import Rgb


@dataclass(frozen=True, slots=True)
class PictureQuestion:
    """A question about a picture, of several frames the newest; `boxes` are in its pixels."""

    name: str
    text: str
    path: Path
    answers: tuple[str, ...]
    boxes: tuple[Box, ...]

    @property
    def known(self) -> KnownAnswer | None:
        """The right answer: any of those in the file."""
        ways = dict.fromkeys(filter(None, (" ".join(words_of(answer)) for answer in self.answers)))
        return KnownAnswer(self.answers[0], ("|".join(ways),)) if ways else None

    def picture(self, longest_px: int) -> tuple[Rgb, list[list[float]]]:
        """Return the picture, uint8 [H, W, 3], shrunk to `longest_px`, and the boxes in its pixels now.

        Raises PictureRefused.
        """
        from PIL import Image

        try:
            image = read_picture(self.path.read_bytes(), longest_px)
        except OSError as error:
            raise PictureRefused(f"{self.path.name} cannot be read: {error.strerror}") from error
        with Image.open(self.path) as whole:
            scale = max(image.size) / max(whole.size)
        return np.asarray(image), [[edge * scale for edge in box] for box in self.boxes]


def read_picture_questions(path: Path) -> list[PictureQuestion]:
    """Return the questions of a file about pictures; those about videos are left out.

    Raises OptionError for a file that cannot be read, naming the line, and ConfigError if it has no such question.
    """
    questions = [question for question in read_question_lines(path, _question) if question is not None]
    if not questions:
        raise ConfigError(f"{path}: all questions are about videos", "give one with questions about pictures")
    return questions


def _question(line: QuestionLine) -> PictureQuestion | None:
    """Raises ValueError, in words."""
    paths = line.paths()
    text = line.text("question")
    answers = line.texts("answers") if "answers" in line.fields else ()
    if line.media_field == "video":
        return None
    return PictureQuestion(str(line.fields.get("id", line.number)), text, paths[-1], answers, line.boxes())
