"""Readers of published formats: what they give, and one line for what does not match."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.errors import ChoiceError, QuestionsError
from evaluation.public.items import PublicQuestion, Request
from evaluation.public.registry import BENCHMARKS, PublicSuite, benchmark_named, data_folder
from evaluation.questions import EvalQuestion
from evaluation.report import cells
from tests.support.benchmarks import FOLDERS, SECONDS, grey_at, streaming_part, write_clip, write_json
from tests.support.evaluation import row

STREAMS = [name for name, benchmark in BENCHMARKS.items() if benchmark.shows == "streams"]
SPLITS = [(name, split) for name, benchmark in BENCHMARKS.items() for split in benchmark.splits if "train" not in split]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


def read(name: str, folder: Path, split: str | None = None, **options: Any) -> PublicSuite:
    benchmark = BENCHMARKS[name]
    limit, skip = options.pop("limit", None), options.pop("skip_missing", False)
    return PublicSuite.read(
        benchmark, Request(folder, split or benchmark.splits[0], **options), limit, skip_missing=skip
    )


def loaded(suite: PublicSuite) -> list[EvalQuestion]:
    return [question.load() for question in suite.questions]


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_every_question_can_be_shown(folders: dict[str, Path], name: str, split: str) -> None:
    suite = read(name, folders[name], split)
    assert suite.total_count == len(suite.questions) > 0
    assert len({question.id for question in suite.questions}) == len(suite.questions)
    for question in loaded(suite):
        assert question.text
        assert len(question.frames) == len(question.times_s) > 0
        assert question.clip
        assert (question.rule is not None) == bool(question.answers)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("context_s", [None, 2.0])
def test_no_frame_is_later_than_the_question(folders: dict[str, Path], name: str, context_s: float | None) -> None:
    for split in BENCHMARKS[name].splits:
        for pending in read(name, folders[name], split, context_s=context_s).questions:
            question = pending.load()
            assert pending.end_s is not None
            assert pending.end_s - 0.25 < max(question.times_s) <= pending.end_s
            assert max(int(frame.mean()) for frame in question.frames) <= grey_at(pending.end_s) + 2 < grey_at(SECONDS)
            assert context_s is None or min(question.times_s) >= pending.end_s - context_s - 0.25


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_asked_in_the_order_of_time(folders: dict[str, Path], name: str) -> None:
    for split in BENCHMARKS[name].splits:
        previous: PublicQuestion | None = None
        for question in read(name, folders[name], split).questions:
            begins = previous is None or previous.group != question.group
            assert question.seen_s == (None if begins or previous is None else previous.end_s)
            assert begins or (question.seen_s or 0) <= (question.end_s or 0)
            previous = question


def test_vqa_v2(folders: dict[str, Path]) -> None:
    first = loaded(read("vqav2", folders["vqav2"]))[0]
    assert (first.id, first.kind, first.clip) == ("262148001", "number", "262148")
    assert first.text == "Question 1?\nAnswer the question using a single word or phrase."
    assert first.answers == (*["2"] * 9, "3")
    assert loaded(read("vqav2", folders["vqav2"], bare=True))[0].text == "Question 1?"
    assert first.rule is not None
    assert first.rule(first.answers, "Two.") == 1.0
    assert first.rule(first.answers, "3") == pytest.approx(0.3)


def test_documents_and_signs(folders: dict[str, Path]) -> None:
    document, sign = loaded(read("docvqa", folders["docvqa"]))[0], loaded(read("textvqa", folders["textvqa"]))[0]
    assert (document.id, document.answers) == ("49153", ("1/8/93",))
    assert document.tags == {"question_type": "handwritten|form"}
    assert document.frames[0].shape == (200, 160, 3)
    assert sign.rule is not None
    assert sign.rule(sign.answers, "Stop") == 1.0  # nine of ten: "STOP!" is one
    (scaled,) = loaded(read("docvqa", folders["docvqa"], tiles=6, limit=1))
    assert scaled.frames[0].shape == (64, 64, 3)


def test_boxes_of_a_category(folders: dict[str, Path]) -> None:
    dogs, people = loaded(read("coco", folders["coco"]))
    assert (dogs.id, dogs.text, dogs.kind) == ("9-18", "Where is the dog?", "medium")
    assert dogs.boxes == (((0.0, 0.0, 64.0, 64.0), (96.0, 32.0, 128.0, 64.0)),)
    assert people.boxes == (((0.0, 0.0, 128.0, 96.0),),)  # without the crowd
    assert dogs.asks_places
    (half,) = loaded(read("coco", folders["coco"], tiles=4, limit=1))
    assert half.frames[0].shape == (32, 64, 3)
    assert half.boxes == (
        ((0.0, 0.0, 32.0, pytest.approx(64 / 3)), (48.0, pytest.approx(32 / 3), 64.0, pytest.approx(64 / 3))),
    )


def test_videos_with_and_without_subtitles(folders: dict[str, Path]) -> None:
    plain = loaded(read("video-mme", folders["video-mme"]))
    titled = loaded(read("video-mme", folders["video-mme"], subtitles=True, frames=2))
    assert plain[0].text.startswith("Select the best answer to the following multiple-choice question")
    assert plain[0].text.endswith("How many?\nA. One.\nB. Two.\nC. Three.\nD. Four.\nThe best answer is:")
    assert len(plain[0].frames) == 48  # of 64 times, all frames that there are
    assert titled[0].times_s == (0.0, 11.75)
    heading = "This video's subtitles are listed below:\nGood morning.\nGoodbye.\n"
    assert titled[0].text == heading + plain[0].text
    assert titled[1].text == plain[1].text  # has none
    assert [question.tags["duration"] for question in plain] == ["short", "medium", "long"]


def test_frames_of_a_stream(folders: dict[str, Path]) -> None:
    early, late = loaded(read("streamingbench", folders["streamingbench"]))
    assert (early.answers, early.times_s) == (("A",), (0.0, 1.0, 2.0, 3.0))
    assert (late.answers, late.seen_s, late.times_s[-1]) == (("B",), 3.0, 8.0)
    newest = loaded(read("streamingbench", folders["streamingbench"], context_s=3.0, frames=4))[1]
    assert newest.times_s == (5.0, 6.0, 7.0, 8.0)


@pytest.mark.parametrize(("at", "frames"), [("0:05:00", 301), ("0:10:00", 301), ("0:20:00", 241)])
def test_long_streams_are_looked_at_less_often(tmp_path: Path, at: str, frames: int) -> None:
    write_json(tmp_path / "questions_real.json", [streaming_part(at, "a")])
    write_clip(tmp_path / "videos" / "a.mp4")
    (question,) = read("streamingbench", tmp_path).questions
    assert question.sampling is not None
    assert len(question.sampling.times_ns(0, round((question.end_s or 0) * 1e9))) == frames


def test_sequential_questions_have_the_earlier_ones(folders: dict[str, Path]) -> None:
    first, second, third = loaded(read("streamingbench", folders["streamingbench"], "sqa"))
    assert "contextual information" not in first.text
    context = "At timestamp 00:00:02, the following question and answer occurred: Question: What is seen at 00:00:02?; "
    assert context + "Options: A. Cat., B. Dog., C. Cow., D. Fox.; Answer: B; " in second.text
    assert "Options:\nA. Cat.\nB. Dog.\nC. Cow.\nD. Fox.\n\nThe best option is:" in second.text
    assert third.text.count("Here are the contextual information") == 1
    assert third.text.index("At timestamp 00:00:02") < third.text.index("At timestamp 00:00:05")


def test_an_instruction_is_polled_each_second(folders: dict[str, Path]) -> None:
    polls = loaded(read("streamingbench", folders["streamingbench"], "proactive"))
    assert [poll.id for poll in polls] == [f"1-0@{at_s}" for at_s in range(2, 11)]
    assert [poll.answers[0] for poll in polls] == ["no"] * 2 + ["yes"] * 5 + ["no"] * 2
    assert [poll.times_s[0] for poll in polls] == [1.0] * 9
    assert 'Is it the right time to output "white"? You can only answer yes or no.' in polls[0].text


def test_questions_of_ovo_bench(folders: dict[str, Path]) -> None:
    questions = {question.id: question for question in loaded(read("ovo-bench", folders["ovo-bench"]))}
    assert list(questions) == ["1", "0", "2", "3_0", "4_0", "4_1", "5_0", "3_1"]
    assert "Options:\nA. red; B. blue; C. grey;\nRespond only with the letter" in questions["0"].text
    assert questions["0"].answers == ("C",)
    assert "How many times did they jump?" in questions["3_1"].text
    assert [questions[name].answers for name in ("3_1", "4_0", "4_1", "5_0")] == [("2",), ("Yes",), ("No",), ("No",)]
    assert "\nopen it\n" in questions["4_0"].text
    assert questions["5_0"].tags == {"task": "CRR", "mode": "forward active responding"}


def test_cut_videos_serve_as_well(tmp_path: Path) -> None:
    folder = FOLDERS["ovo-bench"](tmp_path)
    for path in (folder / "src_videos").rglob("*.mp4"):
        path.unlink()
    for name in ("1", "0"):
        write_clip(folder / "chunked_videos" / f"{name}.mp4")
    suite = read("ovo-bench", folder, limit=2)
    assert [path.path.name for path in suite.questions] == ["1.mp4", "0.mp4"]


def mend(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        (
            "textvqa",
            "TextVQA_0.5.1_val.json",
            lambda benchmark: benchmark["data"][1].pop("question"),
            'entry 2 of .*it needs "question"',
        ),
        (
            "textvqa",
            "TextVQA_0.5.1_val.json",
            lambda benchmark: benchmark["data"][1]["answers"].pop(),
            "entry 2 .*10 people; got 9",
        ),
        (
            "textvqa",
            "TextVQA_0.5.1_val.json",
            lambda benchmark: benchmark["data"].append(7),
            "entry 3 of .*it is no JSON object; got 7",
        ),
        ("textvqa", "TextVQA_0.5.1_val.json", lambda benchmark: benchmark["data"].clear(), "holds no question"),
        ("textvqa", "TextVQA_0.5.1_val.json", lambda benchmark: benchmark.pop("data") and None, "holds no list 'data'"),
        (
            "vqav2",
            "v2_mscoco_val2014_annotations.json",
            lambda benchmark: benchmark["annotations"][2].update(question_id=5),
            "entry 3 of .*its question 5 is not in v2_OpenEnded_mscoco_val2014_questions.json",
        ),
        (
            "docvqa",
            "spdocvqa_qas/val_v1.0_withQT.json",
            lambda benchmark: benchmark["data"][0].update(answers=[]),
            'entry 1 .*"answers"',
        ),
        (
            "coco",
            "annotations/instances_val2017.json",
            lambda benchmark: benchmark["annotations"][1].update(bbox=[1]),
            'entry 2 .*"bbox"',
        ),
        (
            "coco",
            "annotations/instances_val2017.json",
            lambda benchmark: benchmark["annotations"][2].update(image_id=8),
            "entry 3 .*its image 8 or category 1 is not in the file",
        ),
        (
            "coco",
            "annotations/instances_val2017.json",
            lambda benchmark: benchmark.pop("categories") and None,
            "no list 'categories'",
        ),
        (
            "streamingbench",
            "questions_real.json",
            lambda benchmark: benchmark[1]["questions"][0].update(time_stamp="soon"),
            'entry 2 of .*questions_real.json: it needs "time_stamp", a time such as "00:03:10"; got \'soon\'',
        ),
        (
            "streamingbench",
            "questions_real.json",
            lambda benchmark: benchmark[0]["questions"][0].update(answer="E"),
            "entry 1 .*one of A, B, C, D; got 'E'",
        ),
        (
            "streamingbench",
            "questions_real.json",
            lambda benchmark: benchmark[0]["questions"][0].update(options=["A. One."]),
            "entry 1 .*a list of 4 texts; got 1",
        ),
        (
            "streamingbench",
            "questions_real.json",
            lambda benchmark: benchmark[0].update(questions=[]),
            'entry 1 .*"questions", a list',
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(task="XYZ"),
            "entry 1 .*one of EPM, .*got 'XYZ'",
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(gt=3),
            'entry 1 .*"gt".*of one of its 3 options',
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[3]["test_info"][1].pop("count") and None,
            'entry 4 .*"count"',
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(realtime="9"),
            'entry 1 .*"realtime", a number',
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(realtime=float("nan")),
            "entry 1 .*got nan",
        ),
        ("ovo-bench", "ovo_bench_new.json", lambda benchmark: benchmark[0].update(realtime=-1), "entry 1 .*got -1"),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(id="3_0"),
            'two questions with the id "3_0"',
        ),
        (
            "ovo-bench",
            "ovo_bench_new.json",
            lambda benchmark: benchmark[0].update(video="../a.mp4"),
            "entry 1 .*a file in the folder",
        ),
        (
            "streamingbench",
            "questions_real.json",
            lambda benchmark: benchmark[1].update(video_path="/etc/passwd"),
            "entry 2 .*a file in the folder; got '/etc/passwd'",
        ),
    ],
)
def test_an_entry_that_does_not_match_is_named(
    tmp_path: Path, name: str, file: str, change: Callable[[Any], Any], message: str
) -> None:
    folder = FOLDERS[name](tmp_path)
    mend(folder / file, lambda content: change(content) and None)
    with pytest.raises(QuestionsError, match=message) as caught:
        read(name, folder)
    assert "\n" not in str(caught.value)


def test_video_mme_that_does_not_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet

    folder = FOLDERS["video-mme"](tmp_path)
    path = folder / "videomme" / "test-00000-of-00001.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    rows[1]["options"] = rows[1]["options"][:3]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(QuestionsError, match=r'entry 2 of .*parquet: it needs "options", a list of 4 texts; got 3'):
        read("video-mme", folder)
    path.write_bytes(b"PAR0")
    with pytest.raises(QuestionsError, match="is no Parquet file"):
        read("video-mme", folder)
    path.unlink()
    with pytest.raises(QuestionsError, match="no such file; --data is the folder that holds it"):
        read("video-mme", folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(QuestionsError, match="needs pyarrow, which is not installed: pip install pyarrow"):
        read("video-mme", folder)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        QuestionsError, match=r"cannot read .*TextVQA_0.5.1_val.json: No such file.*; --data is the folder"
    ):
        read("textvqa", tmp_path)
    (tmp_path / "TextVQA_0.5.1_val.json").write_text("{")
    with pytest.raises(QuestionsError, match="is no JSON"):
        read("textvqa", tmp_path)


def test_missing_files_are_counted_with_the_remedy(tmp_path: Path) -> None:
    folder = FOLDERS["video-mme"](tmp_path)
    (folder / "data" / "video2.mp4").unlink()
    expected = (
        r"1 of 3 files are missing, the first is .*video2.mp4; unpack videos_chunked_.*, or leave them out with --skip"
    )
    with pytest.raises(QuestionsError, match=expected):
        read("video-mme", folder)
    assert [question.id for question in read("video-mme", folder, limit=1).questions] == ["001-1"]
    suite = read("video-mme", folder, skip_missing=True)
    assert ([question.id for question in suite.questions], suite.missing_count, suite.total_count) == (
        ["001-1", "003-1"],
        1,
        3,
    )
    for question in (folder / "data").iterdir():
        question.unlink()
    with pytest.raises(QuestionsError, match="3 of 3 files are missing"):
        read("video-mme", folder, skip_missing=True)


def test_a_broken_video_names_its_question(tmp_path: Path) -> None:
    folder = FOLDERS["video-mme"](tmp_path)
    (folder / "data" / "video1.mp4").write_bytes(b"no video")
    first, second, _ = read("video-mme", folder).questions
    with pytest.raises(QuestionsError, match=r"question 001-1: .*video1.mp4.*; remove its entry, or mend the file"):
        first.load()
    assert second.load().frames
    (folder / "subtitle" / "video2.srt").write_bytes(b"\xff\xfe\x00no text")
    _, titled, _ = read("video-mme", folder, subtitles=True).questions
    with pytest.raises(QuestionsError, match=r"video2.srt holds no subtitles"):
        titled.load()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vqav2", {"split": "test2015"}, "vqav2 has no split 'test2015'; there are val2014, train2014"),
        ("vqav2", {"subtitles": True}, "vqav2 has no subtitles"),
        ("video-mme", {"context_s": 4.0}, "the questions of video-mme have no time"),
        ("docvqa", {"frames": 4}, "docvqa has no videos"),
        ("ovo-bench", {"bare": True}, "ovo-bench has a prompt, which its scores need"),
    ],
)
def test_requests_that_do_not_suit(folders: dict[str, Path], name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ChoiceError, match=message):
        read(name, folders[name], **options)


def test_names_and_folders_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match="unknown benchmark 'mmmu'; there are streamingbench, ovo-bench, video-mme"):
        benchmark_named("mmmu")
    with pytest.raises(ChoiceError, match="--benchmark coco needs --data, the folder with its files"):
        data_folder("coco", None)
    with pytest.raises(ChoiceError, match=r"there is no folder .*absent"):
        read("coco", tmp_path / "absent")


def test_the_hash_names_what_is_asked_and_shown(folders: dict[str, Path]) -> None:
    def digest(**options: Any) -> str:
        return read("streamingbench", folders["streamingbench"], **options).suite().hash

    assert digest() == digest(limit=1)
    others = [digest(frames=3), digest(tiles=4), digest(context_s=2.0), digest(split="omni")]
    assert len({digest(), *others}) == 5


def figure(name: str, split: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures, _ = BENCHMARKS[name].of_split(split)
    return figures(rows).as_json()


def test_ovo_bench_averages_tasks_then_modes() -> None:
    scores = [("EPM", "b", 1.0), ("EPM", "b", 0.0), ("HLD", "b", 1.0), ("OCR", "r", 0.0), ("REC", "f", 1.0)]
    rows = [
        row(id=str(number), score=score, tags={"task": task, "mode": mode})
        for number, (task, mode, score) in enumerate(scores)
    ]
    result = figure("ovo-bench", "test", rows)
    assert result["figure"] == pytest.approx((0.75 + 0.0 + 1.0) / 3)
    assert result["groups"]["mode"] == {"b": 0.75, "r": 0.0, "f": 1.0}
    assert result["groups"]["task"]["EPM"] == 0.5


def test_video_mme_counts_answers_without_a_letter_apart() -> None:
    tags = {"duration": "short", "domain": "Knowledge", "sub_category": "Law", "task": "OCR Problems"}
    texts = [("B", 1.0), ("C", 0.0), ("no idea", 0.0)]
    rows = [row(id=str(number), text=text, score=score, tags=tags) for number, (text, score) in enumerate(texts)]
    result = figure("video-mme", "test", rows)
    assert (result["figure"], result["answered"], result["of_answered"]) == (
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
        0.5,
    )
    assert result["groups"]["duration"] == {"short": pytest.approx(1 / 3)}
    assert figure("video-mme", "test", rows[2:])["of_answered"] is None


@pytest.mark.parametrize(("first_yes", "right"), [(2, 0.0), (4, 1.0), (8, 1.0), (9, 0.0), (None, 0.0)])
def test_the_first_yes_of_an_instruction_counts(first_yes: int | None, right: float) -> None:
    rows = [
        row(
            id=f"q@{at_s}",
            text="Yes" if first_yes is not None and at_s >= first_yes else "No",
            tags={"query": "q", "at_s": str(at_s), "due_s": "6"},
        )
        for at_s in range(2, 11)
    ]
    assert figure("streamingbench", "proactive", rows)["figure"] == right


def test_a_question_may_be_in_several_groups() -> None:
    rows = [
        row(id="0", score=1.0, tags={"question_type": "form|layout"}),
        row(id="1", score=0.5, tags={"question_type": "form"}),
        row(id="2", score=0.0),
    ]
    result = figure("docvqa", "val", rows)
    assert (result["figure"], result["groups"]) == (0.5, {"question_type": {"form": 0.75, "layout": 1.0}})
    assert cells(rows)[0]["accuracy"] == 0.5
