"""A run of `adapt`: its material, planned before a model is loaded, and its execution."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from arr_coc.adaptation.adapt import LEAST_PICTURES, Adaptation, AdaptOptions, AdaptResult
from arr_coc.adaptation.folder import AdaptFolder
from arr_coc.adaptation.lessons import PlannedLesson
from arr_coc.adaptation.published import coco_annotations, coco_split
from arr_coc.adaptation.questions import GENERIC_QUESTIONS, read_question_file
from arr_coc.errors import OptionError, counted
from arr_coc.layer_weights import fingerprint as fingerprint_of_weights
from arr_coc.qwen.loading import load_qwen
from stream.control import signals_handled
from stream.errors import OutputFailed
from stream.extensions.adapt.clips import plan_clips
from stream.extensions.adapt.labels import plan_labels, read_labels
from stream.extensions.adapt.progress import AdaptBar
from stream.recording.identity import fingerprint, source_fingerprint


@dataclass(frozen=True, slots=True)
class LearningMaterial:
    """Clips to learn from, a file of `questions` about them (None: generic ones), and a file of `boxes` or COCO's
    folder.

    `frames` of all clips together, and so many pictures of COCO, each of at most `max_tiles`.
    """

    clips: tuple[str, ...]
    questions: str | None
    boxes: str | None
    frames: int
    max_tiles: int

    def plan(self, seed: int) -> list[PlannedLesson]:
        """Plan the training material, in order.

        Raises SourceError, ConfigError and OptionError for unreadable input, and OptionError for too few frames.
        """
        questions = GENERIC_QUESTIONS if self.questions is None else read_question_file(_path(self.questions))
        if self.boxes is None:
            labels = []
        else:
            labels = read_labels(_path(self.boxes), self.frames, seed)
        if self.clips:
            clips = plan_clips(self.clips, self.frames, questions, self.max_tiles, seed)
        else:
            clips = []
        lessons = clips + plan_labels(labels, self.max_tiles, seed)
        if len(lessons) < LEAST_PICTURES:
            requirement = f"at least {LEAST_PICTURES} are needed to learn from"
            if self.clips and self.frames < LEAST_PICTURES:
                raise OptionError(
                    f"--frames {self.frames} is too few: {requirement}", f"give --frames {LEAST_PICTURES} or more"
                )
            raise OptionError(
                f"there are only {counted(len(lessons), 'frame')}, and {requirement}",
                "give longer clips, or more of them",
            )
        return lessons

    def made_of(self) -> dict[str, str]:
        """Digests of the inputs that must be equal for `--resume`, by their names in messages."""
        return {
            "clips": _digest(source_fingerprint(clip) or clip for clip in self.clips),
            "questions": "generic" if self.questions is None else _digest([_path(self.questions).read_text("utf-8")]),
            "boxes": "none" if self.boxes is None else _digest_of_boxes(_path(self.boxes)),
            "--frames": str(self.frames),
            "--max-tiles": str(self.max_tiles),
        }


@dataclass(frozen=True, slots=True)
class TeacherOptions:
    """The model that is asked: a folder or hub name (None: the bundled one), and its device."""

    model: str | None
    device: str
    dtype: str


def run_adaptation(
    material: LearningMaterial, teacher: TeacherOptions, folder: str, options: AdaptOptions, *, resume: bool
) -> AdaptResult | None:
    """Make an allocator in a folder, with a progress bar.

    Args:
        material: clips, questions and boxes to learn from.
        teacher: model whose attention is learned, with its device and dtype.
        folder: path of the folder, which also keeps the state for a continued adaptation.
        options: options of the training.
        resume: whether to continue an interrupted adaptation of the same material and options.

    Returns:
        The result; None if Ctrl-C ended the adaptation.

    Raises:
        OutputFailed: the folder cannot be written.
        ArrCocError: as `LearningMaterial.plan`, `load_qwen` and `Adaptation.run`.
    """
    adapt_folder = AdaptFolder(_path(folder))
    lessons = material.plan(options.seed)
    settings = {
        **material.made_of(),
        "--seed": str(options.seed),
        "--scorer": options.scorer,
        "--channels": options.channels,
    }
    adapt_folder.check(settings, resume=resume)
    with AdaptBar() as bar, signals_handled(bar.on_signal):
        bar.begin("loading the model", None)
        qwen = load_qwen(teacher.model, device=teacher.device, dtype=teacher.dtype)
        made_of = {"model weights": fingerprint_of_weights(qwen.model.get_input_embeddings().weight), **settings}
        try:
            return Adaptation(qwen, adapt_folder, options, bar).run(lessons, made_of)
        except OSError as error:
            if error.strerror is None or error.errno is None:
                raise
            raise OutputFailed(
                f"cannot write {adapt_folder.path}: {os.strerror(error.errno)}; the last save is intact",
                "make room, and go on with --resume",
            ) from error


def _path(name: str) -> Path:
    return Path(name).expanduser()


def _digest_of_boxes(path: Path) -> str:
    coco = coco_split(path)
    if coco is None:
        return _digest([path.read_text("utf-8")])
    return fingerprint(coco_annotations(*coco))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
