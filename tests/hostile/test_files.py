"""Recordings, journals and configurations that were tampered with: refused, and nothing else is read."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from arr_coc.types import REGION_SHAPES
from stream.cli import main
from stream.config_loading import build_config, layer_from_file
from stream.errors import ConfigError, RecordingError, ResumeError, TransportError
from stream.extensions.journal.journal import MAGIC as JOURNAL_MAGIC
from stream.extensions.journal.journal import Journal
from stream.extensions.record.format import MAGIC, Recording, SessionStarted, decompress_array
from stream.protocol.messages import ArraySpec
from stream.recording.log import FRAMING, frame_record
from stream.untrusted import ANSWER_CHARS_MAX, CONFIG_BYTES_MAX, KEPT_BYTES_MAX, RECORD_BYTES_MAX
from tests.support.events import answer
from tests.support.faults import many

GROWTH_MAX_BYTES = 200 << 20

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)


BEGAN = msgspec.msgpack.encode(SessionStarted("0.1.0", "x", "now"))
IDENTITY = msgspec.msgpack.encode({"identity": {"source": "x"}})


def sparse(path: Path, head: bytes, size: int) -> None:
    """A sparse file: a large size, and no room on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


@pytest.mark.parametrize("length", [RECORD_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_record_beyond_measure_is_not_read(tmp_path: Path, length: int) -> None:
    path = tmp_path / "0001.rec"
    sparse(path, MAGIC + frame_record(BEGAN) + struct.pack("<II", length, 0), length + 1000)
    recording = Recording(tmp_path)
    assert len(list(recording.records())) == 1
    assert recording.damage


def test_a_record_of_a_journal_beyond_measure_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.resume"
    sparse(path, JOURNAL_MAGIC + frame_record(IDENTITY) + FRAMING.pack(KEPT_BYTES_MAX + 1, 0), 2**31)
    assert Journal.continued(path, {"source": "x"}).earlier_answers == 0


@pytest.mark.parametrize(
    "entry",
    [
        {"answer": msgspec.to_builtins(answer(0.0, "x" * (ANSWER_CHARS_MAX + 1)))},
        {"answer": msgspec.to_builtins(answer(0.0, "x")), "feedback": {"stamp": [0, 0, 0, 0]}},
        {"answer": {"type": "answer"}},
        {},
        [[[]]],
    ],
    ids=["too long", "no stamp", "no answer", "nothing", "nested"],
)
def test_an_answer_that_no_run_has_kept_is_refused(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "a.resume"
    path.write_bytes(JOURNAL_MAGIC + frame_record(IDENTITY) + frame_record(msgspec.msgpack.encode(entry)))
    with pytest.raises(ResumeError, match="is not a journal of a run"):
        Journal.continued(path, {"source": "x"})


@pytest.mark.parametrize("regions", [[[len(REGION_SHAPES), 0, 0]], [[0, -1, 0]], [[0, 40_000, 0]], [[0, 0]]])
def test_feedback_that_no_frame_has_is_refused(tmp_path: Path, regions: list[list[int]]) -> None:
    path = tmp_path / "a.resume"
    feedback = {
        "stamp": {"frame_index": 0, "media_ns": 0, "capture_ns": 0, "epoch": 0},
        "regions": np.array(regions, np.int32).tobytes(),
        "attention": np.ones(1, np.float32).tobytes(),
        "similarity": np.ones(1, np.float32).tobytes(),
    }
    entry = {"answer": msgspec.to_builtins(answer(0.0, "x")), "feedback": feedback}
    path.write_bytes(JOURNAL_MAGIC + frame_record(IDENTITY) + frame_record(msgspec.msgpack.encode(entry)))
    with pytest.raises(ResumeError):
        Journal.continued(path, {"source": "x"})


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_pipes_and_sockets_are_not_waited_for(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    for path in (folder / "0001.rec", tmp_path / "a.resume"):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    with pytest.raises(RecordingError, match="cannot read"):
        list(Recording(folder).records())
    with pytest.raises(ResumeError, match="cannot read"):
        Journal.continued(tmp_path / "a.resume", {})


def test_only_parts_in_the_folder_itself_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    (tmp_path / "0001.rec").write_bytes(MAGIC + frame_record(BEGAN))
    for name in ("..rec", "-1.rec", "0x1.rec", "1e3.rec", "٠٠٠١x.rec", "0001.rec.bak", "notes.rec"):
        (folder / name).write_bytes(MAGIC + frame_record(BEGAN))
    with pytest.raises(RecordingError, match="there is no recording"):
        Recording(folder)


@pytest.mark.parametrize("shape", [(2**31,), (2**31, 2**31, 2**31, 2**31), (70_000, 70_000, 3)])
def test_a_packed_array_beyond_measure_is_not_unpacked(shape: tuple[int, ...]) -> None:
    with pytest.raises(TransportError, match="larger than any that is sent"):
        decompress_array(b"x\x9c" + bytes(100), ArraySpec("uint8", shape))


def test_parts_that_were_swapped_are_read_as_what_they_are_or_reported(tmp_path: Path) -> None:
    first = MAGIC + frame_record(BEGAN) + frame_record(IDENTITY)
    (tmp_path / "0001.rec").write_bytes(JOURNAL_MAGIC + frame_record(BEGAN))
    (tmp_path / "0002.rec").write_bytes(first)
    with pytest.raises(RecordingError, match="is not a part of a recording"):
        list(Recording(tmp_path).records())


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_bit_flips_and_cuts_are_reported_and_never_crash(tmp_path: Path, count: int) -> None:
    path = tmp_path / "0001.rec"
    original = MAGIC + b"".join(map(frame_record, [BEGAN, IDENTITY, BEGAN]))
    for data in many([original], count):
        path.write_bytes(data)
        with suppress(RecordingError):
            list(Recording(tmp_path).records())


ABSURD = [
    "1" * 5000,
    "[" * 20_000 + "]" * 20_000,
    "a = " + "{a = " * 5_000 + "1" + "}" * 5_000,
    "answer = 1",
    "[answer]\nmax_tokens = -1",
    "[answer]\nmax_tokens = 1e400",
    "[answer]\nmax_tokens = nan",
    "[answer]\nevery_s = inf",
    "[answer]\nevery_s = -0.0",
    "[answer]\nevery_s = " + "9" * 400,
    "[answer]\nquery = '" + "x" * 1_000_000 + "'",
    "[answer]\nquery = 3",
    "[allocate]\nbudget = " + "9" * 5000,
    "[allocate]\nbudget = [1, 2]",
    "[capture]\nsize = '99999x99999'",
    "[capture]\nsize = '" + "9" * 10_000 + "x1'",
    "[capture]\nmax_frames = 0",
    "[capture.capture.capture]\na = 1",
    "[output]\nmetrics_port = 99999999",
    "[output]\npaths = [[[]]]",
    "[network]\nkeys = 1979-05-27",
    "# " + "x" * (CONFIG_BYTES_MAX + 1),
    "\x00",
    "answer.answer.answer = 1",
    "[answer]\n" + "".join(f"k{number} = {number}\n" for number in range(20_000)),
]


@pytest.mark.parametrize("text", ABSURD, ids=[text[:25].replace("\n", " ") for text in ABSURD])
def test_an_absurd_configuration_is_refused_in_one_line(
    tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["caption", str(tmp_path / "none.mp4"), "-c", str(path)]) == 2
    out, err = capfd.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 5_000


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_damaged_configuration_is_read_or_refused(tmp_path: Path, count: int) -> None:
    seeds = [b"[answer]\nevery_s = 2.0\nquery = 'x'\n[allocate]\nbudget = 100\n[capture]\nsize = '640x480'\n"]
    path = tmp_path / "a.toml"
    for data in many(seeds, count):
        path.write_bytes(data)
        with suppress(ConfigError):
            build_config([layer_from_file(str(path))])
