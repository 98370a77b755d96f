"""Questions of VQAv2 and boxes of COCO, read from their folders as published: `read_vqa_v2`, `read_coco`.

VQAv2 (Goyal et al. 2017, arXiv:1612.00837; visualqa.org), with COCO's pictures of 2014:

    FOLDER/v2_OpenEnded_mscoco_train2014_questions.json
    FOLDER/v2_mscoco_train2014_annotations.json
    FOLDER/train2014/COCO_train2014_000000000009.jpg

COCO 2017 (Lin et al. 2014, arXiv:1405.0312; cocodataset.org):

    FOLDER/annotations/instances_train2017.json
    FOLDER/train2017/000000000009.jpg
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from arr_coc.adaptation.cases import Box
from arr_coc.errors import OptionError, of_counted


@dataclass(frozen=True, slots=True)
class VqaQuestion:
    """One question about a picture, what ten people answered, and the answer that most of them gave."""

    name: str
    path: Path
    picture: int
    question: str
    answers: tuple[str, ...]
    answer: str
    answer_type: str
    question_type: str


@dataclass(frozen=True, slots=True)
class CocoObjects:
    """All objects of one category in a picture, without crowds: their boxes, and their areas in pixels."""

    path: Path
    picture: int
    category_id: int
    category: str
    boxes: tuple[Box, ...]
    areas: tuple[float, ...]

    @property
    def question(self) -> str:
        """The question whose answer they are."""
        return f"Where is the {self.category}?"


def is_vqa_v2(folder: Path) -> bool:
    """Return whether a folder holds files of VQAv2, of any split."""
    return any(folder.glob("v2_*mscoco_*.json"))


def read_vqa_v2(folder: Path, split: str = "train2014") -> list[VqaQuestion]:
    """Return the questions of a split, train2014 or val2014, in the order of the annotations.

    Pictures are not opened. Raises OptionError, naming the file, for one that is missing or broken.
    """
    questions = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    texts = dict(
        _entries(questions, "questions", lambda entry: (_whole(entry, "question_id"), _text(entry, "question")))
    )

    def parse(entry: Mapping[str, Any]) -> VqaQuestion:
        name = _whole(entry, "question_id")
        picture = _whole(entry, "image_id")
        if name not in texts:
            raise ValueError(f"its question {name} is not in {questions.name}")
        votes = entry.get("answers")
        if not isinstance(votes, list) or len(votes) != VOTERS or not all(isinstance(vote, dict) for vote in votes):
            raise ValueError(f'it needs "answers" of {VOTERS} people; got {_short(votes)}')
        return VqaQuestion(
            name=str(name),
            path=folder / split / f"COCO_{split}_{picture:012d}.jpg",
            picture=picture,
            question=texts[name],
            answers=tuple(_text(vote, "answer") for vote in votes),
            answer=_text(entry, "multiple_choice_answer"),
            answer_type=_text(entry, "answer_type"),
            question_type=_text(entry, "question_type"),
        )

    return _entries(folder / f"v2_mscoco_{split}_annotations.json", "annotations", parse)


VOTERS = 10


def read_coco(folder: Path, split: str = "train2017") -> list[CocoObjects]:
    """Return what is to be found in the pictures of a split, as train2017: an entry for each picture and category.

    Pictures are not opened. Raises OptionError, naming the file, for one that is missing or broken.
    """
    path = coco_annotations(folder, split)
    content = _json(path)
    names = dict(_of(path, content, "categories", lambda entry: (_whole(entry, "id"), _text(entry, "name"))))
    files = dict(_of(path, content, "images", lambda entry: (_whole(entry, "id"), _file(entry, "file_name"))))
    found: dict[tuple[int, int], list[tuple[Box, float]]] = {}

    def parse(entry: Mapping[str, Any]) -> None:
        if entry.get("iscrowd"):
            return
        picture = _whole(entry, "image_id")
        category = _whole(entry, "category_id")
        if picture not in files or category not in names:
            raise ValueError(f"its image {picture} or category {category} is not in the file")
        found.setdefault((picture, category), []).append((_corners(entry), _number(entry, "area")))

    _of(path, content, "annotations", parse)
    return [
        CocoObjects(
            path=folder / split / files[picture],
            picture=picture,
            category_id=category,
            category=names[category],
            boxes=tuple(box for box, _ in objects),
            areas=tuple(area for _, area in objects),
        )
        for (picture, category), objects in found.items()
    ]


def coco_annotations(folder: Path, split: str = "train2017") -> Path:
    """Return the file of a split's boxes."""
    return folder / "annotations" / f"{INSTANCES}{split}.json"


def coco_split(path: Path) -> tuple[Path, str] | None:
    """Return COCO's folder and the split that a path names: the folder itself means train2017, else the file of a
    split's boxes; None for any other file."""
    if path.is_dir():
        return path, "train2017"
    if path.name.startswith(INSTANCES) and path.suffix == ".json":
        return path.parent.parent, path.stem.removeprefix(INSTANCES)
    return None


INSTANCES = "instances_"
"""How the names of COCO's files of boxes begin."""


def check_pictures(paths: Iterable[Path]) -> None:
    """Raise OptionError, with the number of missing pictures and the first of them, if any is missing."""
    wanted = dict.fromkeys(paths)
    missing = [path for path in wanted if not path.is_file()]
    if missing:
        raise OptionError(
            f"{of_counted(len(missing), len(wanted), 'picture')} cannot be found, the first is {missing[0]}",
            f"unpack {missing[0].parent.name}.zip there",
        )


def _entries(path: Path, name: str, parse: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    return _of(path, _json(path), name, parse)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}", "give the folder as it is published") from error
    except ValueError as error:
        raise OptionError(f"{path} is no JSON ({_short(error)})", "download it again") from error


def _of(path: Path, content: Any, name: str, parse: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """Return what `parse` makes of each entry of a list of a file; OptionError names the entry that it refuses."""
    values: Sequence[Any] | None = content.get(name) if isinstance(content, dict) else None
    if not isinstance(values, list):
        raise OptionError(f"{path} holds no list {name!r}", "download it again")
    if not values:
        raise OptionError(f"{path} holds no {name}", "download it again")
    results = []
    for number, entry in enumerate(values, 1):
        try:
            if not isinstance(entry, dict):
                raise ValueError(f"it is no JSON object; got {_short(entry)}")
            results.append(parse(entry))
        except ValueError as error:
            raise OptionError(
                f"entry {number} of {name!r} in {path}: {error}", "download the file again, or mend it"
            ) from error
    return results


def _number(entry: Mapping[str, Any], field: str) -> float:
    value = entry.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f'it needs "{field}", a number of at least 0; got {_short(value)}')
    return float(value)


def _whole(entry: Mapping[str, Any], field: str) -> int:
    return int(_number(entry, field))


def _text(entry: Mapping[str, Any], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'it needs "{field}", a text; got {_short(value)}')
    return value


def _file(entry: Mapping[str, Any], field: str) -> str:
    """Return the name of a file, which must stay in the folder."""
    text = _text(entry, field)
    if PurePath(text).is_absolute() or ".." in PurePath(text).parts or "\0" in text:
        raise ValueError(f'it needs "{field}", the name of a file in the folder; got {text!r}')
    return text


def _corners(entry: Mapping[str, Any]) -> Box:
    values = entry.get("bbox")
    if (
        not isinstance(values, list)
        or len(values) != len(("x", "y", "width", "height"))
        or not all(isinstance(value, (int, float)) and 0 <= value < math.inf for value in values)
    ):
        raise ValueError(f'it needs "bbox", [x, y, width, height] in pixels; got {_short(values)}')
    x, y, width, height = map(float, values)
    return x, y, x + width, y + height


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
