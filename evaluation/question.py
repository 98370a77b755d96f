"""One question as it is put to a model and scored, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from training.truth import Box, Image, Sample


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a picture or a clip.

    `frames` uint8 RGB [H, W, 3] at `times_s`. `answers`: any of them is right; ten of them are people's votes (see
    `scoring`). `facts`: phrases that a description must hold. `boxes` and `distractors`: for each frame, in its pixels,
    what is asked about and what must not draw the tokens. `group` names questions that ask the same of successive
    frames; `before` are the frames of the group's earlier questions, at `before_s`.
    """

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    frames: tuple[Image, ...]
    times_s: tuple[float, ...]
    facts: tuple[str, ...] = ()
    boxes: tuple[tuple[Box, ...], ...] = ()
    distractors: tuple[tuple[Box, ...], ...] = ()
    group: str = ""
    before: tuple[Image, ...] = ()
    before_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, index: int, sample: Sample) -> Question:
        """The `index`-th sample of a suite."""
        return cls(
            id=str(index),
            kind=sample.kind,
            text=sample.question,
            answers=(sample.answer,),
            frames=sample.clip.frames,
            times_s=sample.clip.times_s,
            facts=sample.facts if sample.kind == "describe" else (),
            boxes=sample.boxes,
            distractors=sample.distractors,
            group=sample.group,
        )
