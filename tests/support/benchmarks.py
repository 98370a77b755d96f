"""Small folders in the formats of public benchmarks, drawn and written by a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.evaluation import picture
from tests.support.video import Image as Rgb
from tests.support.video import make_video

FPS, SECONDS = 4, 12


def grey_at(second: float) -> int:
    """Grey of a clip's frame: it becomes brighter by 15 each second."""
    return 20 + int(second) * 15


def clip(seconds: int = SECONDS) -> Iterator[Rgb]:
    """Frames of 96×64 pixels, of one grey each second."""
    for index in range(seconds * FPS):
        yield np.full((64, 96, 3), grey_at(index / FPS), dtype=np.uint8)


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_picture(path: Path, seed: int = 0, height_px: int = 96, width_px: int = 128) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(seed, height_px, width_px)).save(path)
    return path


def write_clip(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make_video(path, clip(), FPS)


def votes(*answers: str) -> list[dict[str, Any]]:
    return [
        {"answer": answer, "answer_confidence": "yes", "answer_id": number} for number, answer in enumerate(answers, 1)
    ]


def vqa_v2(folder: Path, split: str = "val2014") -> Path:
    questions, annotations = [], []
    for number, kind in enumerate(("number", "yes/no", "other"), 1):
        name = 262148000 + number
        questions.append({"image_id": 262148, "question": f"Question {number}?", "question_id": name})
        annotations.append(
            {
                **{"question_type": "how many", "multiple_choice_answer": "2", "image_id": 262148},
                **{"answer_type": kind, "question_id": name, "answers": votes(*["2"] * 9, "3")},
            }
        )
    write_json(folder / f"v2_OpenEnded_mscoco_{split}_questions.json", {"info": {}, "questions": questions})
    write_json(folder / f"v2_mscoco_{split}_annotations.json", {"info": {}, "annotations": annotations})
    write_picture(folder / split / f"COCO_{split}_000000262148.jpg")
    return folder


def text_vqa(folder: Path) -> Path:
    questions = [
        {
            **{"question": f"What is written on sign {number}?", "image_id": f"sign{number}", "set_name": "val"},
            **{"question_id": 34602 + number, "answers": ["stop"] * 8 + ["STOP!", "go"], "image_classes": ["Sign"]},
        }
        for number in range(2)
    ]
    write_json(
        folder / "TextVQA_0.5.1_val.json", {"dataset_version": "0.5.1", "dataset_type": "val", "data": questions}
    )
    for question in questions:
        write_picture(folder / "train_images" / f"{question['image_id']}.jpg", question["question_id"])
    return folder


def doc_vqa(folder: Path) -> Path:
    questions = [
        {
            **{"questionId": 49153 + number, "question": "What is the date?", "docId": 14465, "answers": ["1/8/93"]},
            **{"question_types": ["handwritten", "form"], "image": f"documents/page_{number}.png"},
        }
        for number in range(2)
    ]
    content = {"dataset_name": "SP-DocVQA", "dataset_split": "val", "data": questions}
    write_json(folder / "spdocvqa_qas" / "val_v1.0_withQT.json", content)
    for number in range(2):
        write_picture(folder / "spdocvqa_images" / f"page_{number}.png", number, 200, 160)
    return folder


def coco(folder: Path, split: str = "val2017", pictures: int = 1) -> Path:
    objects = [
        {"id": 1, "category_id": 18, "bbox": [0, 0, 64, 64], "area": 4096, "iscrowd": 0},
        {"id": 2, "category_id": 18, "bbox": [96, 32, 32, 32], "area": 900, "iscrowd": 0},
        {"id": 3, "category_id": 1, "bbox": [0, 0, 128, 96], "area": 12288, "iscrowd": 0},
        {"id": 4, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 1},
    ]
    numbers = range(9, 9 + pictures)
    content = {
        "images": [{"id": number, "file_name": f"{number:012d}.jpg", "width": 128, "height": 96} for number in numbers],
        "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog", "supercategory": "animal"}],
        "annotations": [{**each, "image_id": number} for number in numbers for each in objects],
    }
    write_json(folder / "annotations" / f"instances_{split}.json", content)
    for number in numbers:
        write_picture(folder / split / f"{number:012d}.jpg", number)
    return folder


SUBTITLES = """1
00:00:00,000 --> 00:00:02,000
<font color="white">Good morning.</font>

2
00:00:05,000 --> 00:00:06,000
Nothing is shown then.

3
00:00:11,000 --> 00:00:12,000
Goodbye.
"""


def video_mme(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            **{"video_id": f"00{number}", "duration": duration, "domain": "Knowledge", "sub_category": "Geography"},
            **{"videoID": f"video{number}", "question_id": f"00{number}-1", "task_type": "Counting Problem"},
            **{"question": "How many?", "options": ["A. One.", "B. Two.", "C. Three.", "D. Four."], "answer": "B"},
        }
        for number, duration in enumerate(("short", "medium", "long"), 1)
    ]
    (folder / "videomme").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "videomme" / "test-00000-of-00001.parquet")
    for row in rows:
        write_clip(folder / "data" / f"{row['videoID']}.mp4")
    (folder / "subtitle").mkdir()
    (folder / "subtitle" / "video1.srt").write_text(SUBTITLES, encoding="utf-8")
    return folder


def streaming_part(at: str, name: str, **changes: Any) -> dict[str, Any]:
    question = {
        **{"task_type": "Object Recognition", "question": f"What is seen at {at}?", "time_stamp": at, "answer": "B"},
        **{"options": ["A. A cat.", "B. A dog.", "C. A cow.", "D. A fox."], "required_ability": "working memory"},
    }
    return {"time": "[0:00:00 - 0:00:10]", "questions": [question | changes], "video_path": f"./videos/{name}.mp4"}


def streaming_bench(folder: Path) -> Path:
    real = [streaming_part("00:00:08", "sample_1_real"), streaming_part("00:00:03", "sample_1_real", answer="A")]
    write_json(folder / "questions_real.json", real)
    omni = [
        streaming_part("00:00:04", "sample_2_Emotion_Recognition", task_type="Emotion Recognition"),
        streaming_part("00:00:09", "sample_2_Emotion_Recognition", task_type="Anomaly Context Understanding"),
    ]
    write_json(folder / "questions_omni.json", omni)
    plain = {"options": ["Cat.", "Dog.", "Cow.", "Fox."], "task_type": "Related Context Understanding"}
    sqa = [[streaming_part(at, "sample_3_sqa", **plain) for at in ("00:00:02", "00:00:05", "00:00:07")]]
    write_json(folder / "questions_sqa.json", sqa)
    instruction = {
        **{"task_type": "Active Output", "question": 'When it is white, output "white".', "time_stamp": "0:00:01"},
        **{"ground_truth_time_stamp": "0:00:06", "ground_truth_output": "white"},
    }
    write_json(
        folder / "questions_proactive.json",
        [{"time": "", "questions": [instruction], "video_path": "./videos/sample_4_proactive.mp4"}],
    )
    for name in ("sample_1_real", "sample_2_Emotion_Recognition", "sample_3_sqa", "sample_4_proactive"):
        write_clip(folder / "videos" / f"{name}.mp4")
    return folder


def ovo_bench(folder: Path) -> Path:
    choice = {"question": "What colour is it?", "answer": "grey", "options": ["red", "blue", "grey"], "gt": 2}
    write_json(
        folder / "ovo_bench_new.json",
        [
            {"id": 0, "task": "EPM", "video": "Ego4D/a.mp4", "realtime": 9.5, **choice},
            {"id": 1, "task": "OCR", "video": "Ego4D/a.mp4", "realtime": 3, **choice},
            {"id": 2, "task": "ATR", "video": "COIN/b.mp4", "realtime": 4, **choice},
            {
                **{"id": 3, "task": "REC", "video": "COIN/b.mp4", "activity": "jump"},
                "test_info": [{"realtime": 5, "count": 1}, {"realtime": 8.0, "count": 2}],
            },
            {
                **{"id": 4, "task": "SSR", "video": "COIN/b.mp4"},
                "test_info": [{"realtime": 6, "step": "open it", "type": 1}, {"realtime": 6, "step": "go", "type": 0}],
            },
            {
                **{"id": 5, "task": "CRR", "video": "COIN/b.mp4", "question": "Where?", "answer": "There."},
                "test_info": [{"realtime": 7, "type": 0}],
            },
        ],
    )
    for name in ("Ego4D/a.mp4", "COIN/b.mp4"):
        write_clip(folder / "src_videos" / name)
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "streamingbench": streaming_bench,
    "ovo-bench": ovo_bench,
    "video-mme": video_mme,
    "textvqa": text_vqa,
    "docvqa": doc_vqa,
    "vqav2": vqa_v2,
    "coco": coco,
}
