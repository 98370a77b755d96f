"""A user's question file: what it may hold, and what it is refused for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evaluation.errors import QuestionsError
from evaluation.questions import read_questions
from tests.support.evaluation import picture
from tests.support.video import make_video, moving_square


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(3):
        Image.fromarray(picture(index)).save(tmp_path / f"{index}.png")
    Image.fromarray(picture(0, 32, 64)).save(tmp_path / "small.png")
    (tmp_path / "broken.png").write_text("no picture")
    return tmp_path


def write(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "own.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = {"image": "0.png", "question": "What is it?", "answers": ["noise"]}


def test_pictures_frames_and_their_fields(folder: Path) -> None:
    path = write(
        folder,
        GOOD,
        "",
        {**GOOD, "id": 7, "kind": "colour", "boxes": [[1, 2, 30, 40]], "frames": ["1.png", "2.png"]} | {"image": None},
    )
    text = path.read_text().replace('"image": null, ', "").replace(', "image": null', "")
    path.write_text(text)
    first, second = (question.load(4) for question in read_questions(path))
    assert (first.id, first.kind, first.text, first.answers) == ("1", "own", "What is it?", ("noise",))
    assert np.array_equal(first.frames[0], picture(0))
    assert first.boxes == ()
    assert (second.id, second.kind, second.times_s) == ("7", "colour", (0.0, 0.5))
    assert second.boxes == ((), ((1.0, 2.0, 30.0, 40.0),))


def test_frames_of_a_video_lie_evenly_in_it(folder: Path) -> None:
    make_video(folder / "clip.mp4", moving_square(10, 64, 48), fps=10)
    (entry,) = read_questions(write(folder, {"video": "clip.mp4", "question": "?", "answers": ["right"]}))
    question = entry.load(2)
    assert question.times_s == (0.2, 0.7)
    assert [frame.shape for frame in question.frames] == [(48, 64, 3)] * 2
    for frame, index in zip(question.frames, (2, 7), strict=True):
        red = np.argwhere((frame[..., 0] > 150) & (frame[..., 1] < 90))
        assert abs(red[:, 1].mean() - (2 + 2 * index + 5.5)) < 1.5
    assert entry.load(99).times_s == tuple(index / 10 for index in range(10))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "it is not JSON"),
        ("[1]", "it is no JSON object"),
        ({**GOOD, "anwsers": []}, "unknown field 'anwsers'; there are answers, boxes, frames, id"),
        ({"question": "?", "answers": ["a"]}, "needs one of image, frames and video, and has none"),
        ({**GOOD, "video": "x.mp4"}, "and has image and video"),
        ({"image": "0.png", "answers": ["a"]}, 'it needs "question", a text; got None'),
        ({**GOOD, "question": " "}, 'it needs "question", a text'),
        ({"image": "0.png", "question": "?"}, 'it needs "answers", a list of at least one text; got None'),
        ({**GOOD, "answers": []}, 'it needs "answers"'),
        ({**GOOD, "answers": [3]}, 'it needs "answers"'),
        ({**GOOD, "image": "none.png"}, r"there is no file .*none.png; put it there, or correct the path in .image."),
        ({**GOOD, "image": "broken.png"}, "broken.png is not an image that can be read; convert it"),
        ({**GOOD, "boxes": [[1, 2, 3]]}, r"a box is \[left, top, right, bottom\] in pixels"),
        ({**GOOD, "boxes": [[9, 2, 3, 8]]}, "left of its right and above its bottom"),
        ({**GOOD, "boxes": "all"}, 'it needs "boxes", a list of'),
    ],
)
def test_a_line_that_does_not_hold_is_named_with_a_remedy(
    folder: Path, line: dict[str, Any] | str, message: str
) -> None:
    with pytest.raises(QuestionsError, match=f"^line 2 of own.jsonl: .*{message}") as caught:
        read_questions(write(folder, GOOD, line))
    assert "\n" not in str(caught.value)


def test_frames_of_different_sizes_are_refused(folder: Path) -> None:
    line = {"frames": ["0.png", "small.png"], "question": "?", "answers": ["a"]}
    with pytest.raises(QuestionsError, match=r"line 1 of own.jsonl: its frames have different sizes"):
        read_questions(write(folder, line))


def test_two_questions_of_one_id_are_refused(folder: Path) -> None:
    with pytest.raises(QuestionsError, match='two questions have the id "2"'):
        read_questions(write(folder, {**GOOD, "id": "2"}, GOOD))


def test_a_file_without_questions_or_that_is_not_there(folder: Path) -> None:
    with pytest.raises(QuestionsError, match="holds no question"):
        read_questions(write(folder, ""))
    with pytest.raises(QuestionsError, match="No such file or directory; give a JSONL file"):
        read_questions(folder / "absent.jsonl")
    (folder / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuestionsError, match="it is not UTF-8"):
        read_questions(folder / "binary.jsonl")


def test_an_unreadable_picture_names_its_question(folder: Path) -> None:
    (folder / "clip.mp4").write_bytes(b"no video")
    path = write(folder, {"video": "clip.mp4", "question": "?", "answers": ["a"]}, GOOD)
    video, image = read_questions(path)
    with pytest.raises(QuestionsError, match=r"question 1: .*clip.mp4.*; remove its line, or mend the file"):
        video.load(2)
    cut = (folder / "0.png").read_bytes()
    (folder / "0.png").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(QuestionsError, match=r"question 2: .*remove its line, or mend the file"):
        image.load(2)
