"""`--record` and `replay` for a user: output, exit statuses, and mistakes that are refused in one line."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from stream.cli import main
from stream.extensions.record.format import AnyRecord, ReceivedMessage, Recording, encode_record, open_part
from stream.extensions.record.replay import open_recorded
from stream.protocol.messages import AnswerReply
from stream.recording.log import RecordLog
from stream.runtime.frame_stages import run_in_threads
from tests.support.models import tiny_folder
from tests.support.video import make_video, moving_square

MODEL_LOADER = "tests.support.answer_models:FakeAnswerModel"


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_video(tmp_path_factory.mktemp("clip") / "clip.mp4", moving_square(12), fps=10))


def caption(clip: str, model: str, folder: Path, *options: str) -> int:
    common = ["--single-process", "--every", "0.5", "--set", "answer.max_tokens=4", "--record", str(folder)]
    return main(["caption", clip, "-m", model, *common, *options])


@pytest.fixture(scope="module")
def recorded(clip: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "rec"
    assert caption(clip, model, folder, "--encode", "incremental", "--memory-frames", "2") == 0
    return folder


def changed(recorded: Path, to: Path) -> Path:
    """A copy in which the second answer was another one."""
    part, answer_count = open_part(to), 0
    for record in Recording(recorded).records():
        answer_count += _is_answer(record)
        part.append(encode_record(_other(record) if answer_count == 2 and _is_answer(record) else record))
    part.close()
    return to


def _is_answer(record: AnyRecord) -> bool:
    return isinstance(record, ReceivedMessage) and isinstance(record.message, AnswerReply)


def _other(record: AnyRecord) -> ReceivedMessage:
    assert isinstance(record, ReceivedMessage)
    assert isinstance(record.message, AnswerReply)
    fields = {name: getattr(record.message, name) for name in record.message.__struct_fields__}
    return ReceivedMessage(AnswerReply(**{**fields, "text": "something\x1b else"}), record.parts)


def test_a_run_is_answered_again_alike(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:16] for line in lines[:-1]] == [
        "0:00.0  same    ",
        "0:00.5  same    ",
        "0:01.0  same    ",
        "0:01.1  same    ",
    ]
    assert lines[-1] == "4 answers, all the same, of 12 frames"


def test_an_answer_that_differs_is_shown_with_the_recorded_one(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(changed(recorded, tmp_path))
    assert main(["replay", folder]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("0:00.5  differs   ")
    assert lines[2] == "        recorded  something else"
    assert lines[-1] == "4 answers, 1 differ, the first at 0:00.5, of 12 frames"
    assert main(["replay", folder, "--json"]) == 1
    replies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in replies] == ["replayed"] * 4 + ["replay-summary"]
    assert [line["same"] for line in replies[:-1]] == [True, False, True, True]
    assert replies[1]["recorded"] == "something\x1b else"
    summary = replies[-1]
    assert (summary["answers"], summary["differing"], summary["first_s"]) == (4, 1, 0.5)
    assert summary["recorded"]["frames"] == 12


def test_a_truncated_recording_is_reported_and_the_rest_answered(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (recorded / "0001.rec").read_bytes()
    (tmp_path / "0001.rec").write_bytes(data[: len(data) // 2])
    assert main(["replay", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert "note: 0001.rec was cut short or damaged after" in output.err
    assert output.out.splitlines()[-1].startswith(("1 answer, all the same, of ", "2 answers, all the same, of "))


def test_looks_are_shown_with_their_question(
    clip: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", MODEL_LOADER)
    monkeypatch.setattr(open_recorded, "__defaults__", (MODEL_LOADER,))
    assert caption(clip, model, tmp_path / "a", "--until", "is it red?", "--go-on") == 0
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0:00.0  same      yes 99.0 %: is it red?"
    assert lines[-1] == f"{len(lines) - 1} looks, all the same, of 12 frames"


def test_another_model_is_refused_and_a_copy_is_not(
    recorded: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(model, tmp_path / "moved")
    assert main(["replay", str(recorded), "-m", str(copy), "--dtype", "float32", "--device", "cpu"]) == 0
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    capsys.readouterr()
    assert main(["replay", str(recorded), "-m", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: recorded with another model than {copy}: {model} (")
    assert line.endswith("give --model the folder or name of that one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing argument 'FOLDER'"),
        (["/no/such/folder"], "there is no recording in '/no/such/folder'"),
        (["{folder}", "--budget", "3"], "no such option: --budget"),
    ],
)
def test_invalid_recordings_are_reported_in_one_line(
    arguments: list[str], message: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *(argument.format(folder=recorded) for argument in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")


def test_a_recording_of_a_run_that_answered_nothing_is_reported(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = open_part(tmp_path)
    for record in Recording(recorded).records():
        if not _is_answer(record):
            part.append(encode_record(record))
    part.close()
    assert main(["replay", str(tmp_path)]) == 2
    assert "nothing was answered in" in capsys.readouterr().err


def test_another_version_that_reads_the_format_is_noted(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stream.extensions.record.command.version", lambda name: "9.0")
    assert main(["replay", str(recorded)]) == 0
    assert "note: recorded by version 0.1.0" in capsys.readouterr().err


def test_a_folder_takes_one_recording(
    recorded: Path, clip: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in recorded.iterdir())
    assert caption(clip, model, recorded) == 2
    assert "holds a recording already; name another folder" in capsys.readouterr().err
    assert sorted(path.name for path in recorded.iterdir()) == before


def test_a_run_that_does_not_begin_leaves_no_folder(tmp_path: Path, clip: str, model: str) -> None:
    assert caption(str(tmp_path / "absent.mp4"), model, tmp_path / "a") == 2
    assert caption(clip, model, tmp_path / "a", "--until", "a question for which the model has no yes") == 2
    assert not (tmp_path / "a").exists()


def test_a_full_disk_ends_the_recording_and_not_the_run(
    clip: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append, answers = RecordLog.append, 0

    def full(part: RecordLog, payload: bytes) -> None:
        nonlocal answers
        answers += part.path.suffix == ".rec" and _is_answer(msgspec.msgpack.decode(payload, type=AnyRecord))
        if answers > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(part, payload)

    monkeypatch.setattr(RecordLog, "append", full)
    out = tmp_path / "a.jsonl"
    assert caption(clip, model, tmp_path / "rec", "-o", str(out)) == 0
    events = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sum(line["type"] == "answer" for line in events) == 4
    (notice,) = (line for line in events if line["type"] == "notice" and line["code"] == "recording-ended")
    assert "No space left on device" in notice["message"]
    assert main(["replay", str(tmp_path / "rec")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 answer, all the same, of ")
