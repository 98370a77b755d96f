"""VQAv2 and COCO in folders as published: what is read of them, and one line for what is missing or broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arr_coc.adaptation.published import check_pictures, coco_split, read_coco, read_vqa_v2
from arr_coc.errors import OptionError
from tests.support.benchmarks import coco, vqa_v2


def test_questions_of_vqa_v2(tmp_path: Path) -> None:
    first, *others = read_vqa_v2(vqa_v2(tmp_path, "train2014"))
    assert len(others) == 2
    assert (first.name, first.picture, first.question, first.answer) == ("262148001", 262148, "Question 1?", "2")
    assert first.answers == (*["2"] * 9, "3")
    assert (first.answer_type, first.question_type) == ("number", "how many")
    assert first.path == tmp_path / "train2014" / "COCO_train2014_000000262148.jpg"
    check_pictures([first.path, *(other.path for other in others)])


def test_boxes_of_coco(tmp_path: Path) -> None:
    dogs, people = read_coco(coco(tmp_path, "train2017"))
    assert (dogs.question, dogs.boxes) == ("Where is the dog?", ((0, 0, 64, 64), (96, 32, 128, 64)))
    assert (dogs.areas, dogs.picture, dogs.category_id) == ((4096, 900), 9, 18)
    assert people.boxes == ((0, 0, 128, 96),)  # without the crowd
    assert people.path == tmp_path / "train2017" / "000000000009.jpg"
    check_pictures([dogs.path])


def test_a_path_names_the_folder_or_a_split(tmp_path: Path) -> None:
    assert coco_split(tmp_path) == (tmp_path, "train2017")
    assert coco_split(tmp_path / "annotations" / "instances_val2017.json") == (tmp_path, "val2017")
    assert coco_split(tmp_path / "labels.jsonl") is None


QUESTIONS = "v2_OpenEnded_mscoco_train2014_questions.json"
ANNOTATIONS = "v2_mscoco_train2014_annotations.json"
INSTANCES = "annotations/instances_train2017.json"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (QUESTIONS, lambda vqa: vqa["questions"][1].update(question=""), "entry 2 of 'questions' in .*\"question\", a"),
        (
            QUESTIONS,
            lambda vqa: vqa["questions"][0].pop("question_id"),
            '"question_id", a number of at least 0; got None',
        ),
        (QUESTIONS, lambda vqa: vqa["questions"].append(7), "entry 4 of .*it is no JSON object; got 7"),
        (ANNOTATIONS, lambda vqa: vqa["annotations"][0]["answers"].pop(), '"answers" of 10 people; got'),
        (
            ANNOTATIONS,
            lambda vqa: vqa["annotations"][2].update(question_id=5),
            "its question 5 is not in v2_OpenEnded_",
        ),
        (ANNOTATIONS, lambda vqa: vqa["annotations"].clear(), "holds no annotations; download it again"),
        (INSTANCES, lambda boxes: boxes["annotations"][1].update(bbox=[1]), 'entry 2 of .*"bbox", .* pixels; got .1.'),
        (INSTANCES, lambda boxes: boxes["annotations"][2].update(image_id=8), "its image 8 or category 1 is not in"),
        (INSTANCES, lambda boxes: boxes["images"][0].update(file_name="../a.jpg"), "the name of a file in the folder"),
        (INSTANCES, lambda boxes: boxes.pop("categories"), "holds no list 'categories'; download it again"),
    ],
)
def test_what_is_broken_is_named_in_one_line(
    tmp_path: Path, file: str, change: Callable[[Any], Any], message: str
) -> None:
    vqa_v2(tmp_path, "train2014")
    coco(tmp_path, "train2017")
    content = json.loads((tmp_path / file).read_text())
    change(content)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(OptionError, match=message) as refused:
        (read_coco if file == INSTANCES else read_vqa_v2)(tmp_path)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot read .*questions.json: No such file.*; give the folder as it is"):
        read_vqa_v2(tmp_path)
    (tmp_path / "annotations").mkdir()
    (tmp_path / INSTANCES).write_bytes(b'{"images": [\xff')
    with pytest.raises(OptionError, match=r"instances_train2017.json is no JSON .*; download it again"):
        read_coco(tmp_path)


def test_missing_pictures_are_counted(tmp_path: Path) -> None:
    paths = [objects.path for objects in read_coco(coco(tmp_path, "train2017", pictures=3))]
    paths[0].unlink()
    with pytest.raises(
        OptionError, match=r"1 of 3 pictures cannot be found, the first is .*09.jpg; unpack train2017.zip"
    ):
        check_pictures(paths)
