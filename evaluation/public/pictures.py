"""VQAv2, TextVQA, DocVQA and COCO: questions about pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from arr_coc.adaptation import published
from arr_coc.errors import OptionError
from evaluation.errors import QuestionsError
from evaluation.public.entries import Entry, json_list, read_entries
from evaluation.public.figures import SEPARATOR
from evaluation.public.items import PublicQuestion, Request
from evaluation.public.rules import anls
from evaluation.public.vqa_text import text_vqa_accuracy, vqa_accuracy

T = TypeVar("T")

IN_A_WORD = "\nAnswer the question using a single word or phrase."
"""None of the three has a prompt: people answered. This one is usual for models that speak in sentences."""

VOTERS = 10


def read_vqa_v2(request: Request) -> list[PublicQuestion]:
    """VQAv2, as `arr_coc.adaptation.published` describes its folder. Splits: val2014, train2014."""
    return [
        PublicQuestion(
            id=entry.name,
            kind=entry.answer_type,
            text=_question_text(request, entry.question),
            answers=entry.answers,
            path=entry.path,
            rule=vqa_accuracy,
            tiles=request.tiles,
            tags={"answer_type": entry.answer_type, "question_type": entry.question_type},
            clip=str(entry.picture),
        )
        for entry in _published(published.read_vqa_v2, request)
    ]


def read_text_vqa(request: Request) -> list[PublicQuestion]:
    """TextVQA 0.5.1 (Singh et al. 2019, arXiv:1904.08920; textvqa.org):

        FOLDER/TextVQA_0.5.1_val.json
        FOLDER/train_images/003a8ae2ef43b901.jpg

    Splits: val, train; the pictures of both are in train_images.
    """

    def read(entry: Entry) -> list[PublicQuestion]:
        picture = entry.file("image_id")
        return [
            PublicQuestion(
                id=entry.name_of("question_id"),
                kind="text",
                text=_question_text(request, entry.text("question")),
                answers=_votes(entry.texts("answers")),
                path=request.folder / "train_images" / f"{picture}.jpg",
                rule=text_vqa_accuracy,
                tiles=request.tiles,
                clip=picture,
            )
        ]

    path = request.folder / f"TextVQA_0.5.1_{request.split}.json"
    return read_entries(path, json_list(path, "data"), read)


def read_doc_vqa(request: Request) -> list[PublicQuestion]:
    """DocVQA, task 1 (Mathew et al. 2021, arXiv:2007.00398; rrc.cvc.uab.es, challenge 17):

        FOLDER/spdocvqa_qas/val_v1.0_withQT.json
        FOLDER/spdocvqa_images/xnbl0037_1.png

    Splits: val, train. The answers of test are not public.
    """

    def read(entry: Entry) -> list[PublicQuestion]:
        picture = Path(entry.file("image")).name
        types = entry.fields.get("question_types")
        return [
            PublicQuestion(
                id=entry.name_of("questionId"),
                kind="document",
                text=_question_text(request, entry.text("question")),
                answers=entry.texts("answers"),
                path=request.folder / "spdocvqa_images" / picture,
                rule=anls,
                tiles=request.tiles,
                tags={"question_type": SEPARATOR.join(map(str, types))} if isinstance(types, list) else {},
                clip=picture,
            )
        ]

    path = request.folder / "spdocvqa_qas" / f"{request.split}_v1.0_withQT.json"
    return read_entries(path, json_list(path, "data"), read)


SMALL_PX, LARGE_PX = 32**2, 96**2
"""Limits of COCO's sizes, of an object's area in pixels."""


def read_coco(request: Request) -> list[PublicQuestion]:
    """Boxes of COCO 2017, as `arr_coc.adaptation.published` describes its folder.

    One question for each picture and category in it; its boxes are those of all objects of the category, without
    crowds. `size` is COCO's of the largest. A box that covers less than a twentieth of each tile touches none. The
    score is the IoU of the tiles shown with those that the boxes touch. Splits: val2017, train2017.
    """
    return [
        PublicQuestion(
            id=f"{entry.picture}-{entry.category_id}",
            kind=_size(max(entry.areas)),
            text=entry.question,
            answers=(),
            path=entry.path,
            tiles=request.tiles,
            boxes=entry.boxes,
            tags={"size": _size(max(entry.areas)), "category": entry.category},
            clip=str(entry.picture),
        )
        for entry in _published(published.read_coco, request)
    ]


def _published(read: Callable[[Path, str], list[T]], request: Request) -> list[T]:
    try:
        return read(request.folder, request.split)
    except OptionError as error:
        raise QuestionsError(str(error)) from error


def _size(area_px: float) -> str:
    return "small" if area_px < SMALL_PX else "medium" if area_px < LARGE_PX else "large"


def _votes(answers: tuple[str, ...]) -> tuple[str, ...]:
    if len(answers) != VOTERS:
        raise ValueError(f'it needs "answers" of {VOTERS} people; got {len(answers)}')
    return answers


def _question_text(request: Request, question: str) -> str:
    return question if request.bare else question + IN_A_WORD
