"""VQAv2, TextVQA, DocVQA and COCO: questions about pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evaluation.errors import QuestionsError
from evaluation.public.entries import Entry, json_list, read_entries, read_json
from evaluation.public.figures import SEPARATOR
from evaluation.public.items import PublicQuestion, Request
from evaluation.public.rules import anls
from evaluation.public.vqa_text import text_vqa_accuracy, vqa_accuracy
from training.clips.truth import Box

IN_A_WORD = "\nAnswer the question using a single word or phrase."
"""None of the three has a prompt: people answered. This one is usual for models that speak in sentences."""

VOTERS = 10


def read_vqa_v2(request: Request) -> list[PublicQuestion]:
    """VQAv2 (Goyal et al. 2017, arXiv:1612.00837; visualqa.org), with COCO's pictures of 2014:

        FOLDER/v2_OpenEnded_mscoco_val2014_questions.json
        FOLDER/v2_mscoco_val2014_annotations.json
        FOLDER/val2014/COCO_val2014_000000262148.jpg

    Splits: val2014, train2014.
    """
    folder, split = request.folder, request.split
    questions_path = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    texts = dict(
        read_entries(
            questions_path,
            json_list(questions_path, "questions"),
            lambda entry: [(entry.name_of("question_id"), entry.text("question"))],
        )
    )

    def read(entry: Entry) -> list[PublicQuestion]:
        name, picture = entry.name_of("question_id"), int(entry.number_of("image_id"))
        if name not in texts:
            raise ValueError(f"its question {name} is not in {questions_path.name}")
        kind = entry.text("answer_type")
        return [
            PublicQuestion(
                id=name,
                kind=kind,
                text=_question_text(request, texts[name]),
                answers=_votes(tuple(vote.text("answer") for vote in entry.entries("answers"))),
                path=folder / split / f"COCO_{split}_{picture:012d}.jpg",
                rule=vqa_accuracy,
                tiles=request.tiles,
                tags={"answer_type": kind, "question_type": entry.text("question_type")},
                clip=str(picture),
            )
        ]

    annotations_path = folder / f"v2_mscoco_{split}_annotations.json"
    return read_entries(annotations_path, json_list(annotations_path, "annotations"), read)


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
    """Boxes of COCO 2017 (Lin et al. 2014, arXiv:1405.0312; cocodataset.org):

        FOLDER/annotations/instances_val2017.json
        FOLDER/val2017/000000397133.jpg

    One question for each picture and category in it; its boxes are those of all objects of the category, without
    crowds. `size` is COCO's of the largest. A box that covers less than a twentieth of each tile touches none. The
    score is the IoU of the tiles shown with those that the boxes touch. Splits: val2017, train2017.
    """
    path = request.folder / "annotations" / f"instances_{request.split}.json"
    content = read_json(path)
    lists = {
        name: content.get(name) if isinstance(content, dict) else None
        for name in ("categories", "images", "annotations")
    }
    for name, values in lists.items():
        if not isinstance(values, list):
            raise QuestionsError(f"{path} holds no list {name!r}; download it again")
    names = _names_by_id(path, lists["categories"], "name", Entry.text)
    files = _names_by_id(path, lists["images"], "file_name", Entry.file)
    boxes: dict[tuple[int, int], list[tuple[float, Box]]] = {}

    def read(entry: Entry) -> list[int]:
        if entry.fields.get("iscrowd"):
            return [0]
        place = int(entry.number_of("image_id")), int(entry.number_of("category_id"))
        if place[0] not in files or place[1] not in names:
            raise ValueError(f"its image {place[0]} or category {place[1]} is not in the file")
        boxes.setdefault(place, []).append((entry.number_of("area"), _corners(entry)))
        return [1]

    read_entries(path, lists["annotations"] or [], read)
    return [
        PublicQuestion(
            id=f"{picture}-{category}",
            kind=_size(max(area for area, _ in objects)),
            text=f"Where is the {names[category]}?",
            answers=(),
            path=request.folder / request.split / files[picture],
            tiles=request.tiles,
            boxes=tuple(box for _, box in objects),
            tags={"size": _size(max(area for area, _ in objects)), "category": names[category]},
            clip=str(picture),
        )
        for (picture, category), objects in boxes.items()
    ]


def _names_by_id(path: Path, values: Any, field: str, value: Callable[[Entry, str], str]) -> Mapping[int, str]:
    return dict(read_entries(path, values, lambda entry: [(int(entry.number_of("id")), value(entry, field))]))


def _corners(entry: Entry) -> Box:
    values = entry.fields.get("bbox")
    if (
        not isinstance(values, list)
        or len(values) != len(("x", "y", "width", "height"))
        or not all(isinstance(value, (int, float)) and value >= 0 for value in values)
    ):
        raise ValueError(f'it needs "bbox", [x, y, width, height] in pixels; got {values!r}')
    x, y, width, height = map(float, values)
    return x, y, x + width, y + height


def _size(area_px: float) -> str:
    return "small" if area_px < SMALL_PX else "medium" if area_px < LARGE_PX else "large"


def _votes(answers: tuple[str, ...]) -> tuple[str, ...]:
    if len(answers) != VOTERS:
        raise ValueError(f'it needs "answers" of {VOTERS} people; got {len(answers)}')
    return answers


def _question_text(request: Request, question: str) -> str:
    return question if request.bare else question + IN_A_WORD
