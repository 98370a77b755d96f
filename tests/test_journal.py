"""The journal of a run: what was kept comes back exactly, and nothing else does."""

from __future__ import annotations

import errno
import logging
import os
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from arr_coc.types import Feedback, FrameStamp
from stream.errors import ResumeError
from stream.events import Answer
from stream.framing import FRAMING
from stream.journal import MAGIC, Journal, journal_path
from tests.event_maker import answer

IDENTITY = {"source": "clip.mp4 (12 bytes, 00)", "answer.query": '"What?"', "program": "1"}


def numbered(number: int) -> Answer:
    return msgspec.structs.replace(answer(number / 3, f"ünsaid {number}", frame_index=10 * number), answer=number)


def feedback(number: int) -> Feedback:
    rng = np.random.default_rng(number)
    regions = rng.integers(0, (6, 9, 9), (5, 3), dtype=np.int32)
    scores = rng.random((2, 5), dtype=np.float32)
    return Feedback(FrameStamp(10 * number, 7, 8, 1 << 40), regions, scores[0], scores[1])


def kept(path: Path, count: int = 3) -> Path:
    """A journal that holds so many answers; every other one has taught something."""
    journal = Journal.fresh(path, IDENTITY)
    journal.begin()
    for number in range(count):
        journal.keep(numbered(number), feedback(number) if number % 2 else None)
    journal.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(str(tmp_path / "out.vtt"))


def test_it_lies_beside_the_output(path: Path) -> None:
    assert path.name == "out.vtt.resume"


def test_what_was_kept_comes_back_exactly(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    assert (journal.recalls, journal.kept) == (3, 3)
    for number in range(3):
        recalled = journal.recall(number, 10 * number)
        assert recalled is not None
        assert recalled.answer == numbered(number)
        if not number % 2:
            assert recalled.feedback is None
            continue
        was, now = feedback(number), recalled.feedback
        assert now is not None
        assert now.stamp == was.stamp
        for name in ("regions", "attention", "similarity"):
            mine, theirs = getattr(was, name), getattr(now, name)
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs)
    assert journal.recall(3, 30) is None


def test_a_fresh_run_recalls_nothing_and_replaces_what_lay_there(path: Path) -> None:
    kept(path)
    journal = Journal.fresh(path, IDENTITY)
    assert Journal.continued(path, IDENTITY).recalls == 3, "nothing is lost before the run begins"
    journal.begin()
    assert journal.recall(0, 0) is None
    assert Journal.continued(path, IDENTITY).recalls == 0
    journal.close()


def test_a_continued_journal_goes_on_where_it_stopped(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    journal.begin()
    journal.begin()
    journal.keep(numbered(2), None)
    journal.keep(numbered(3), feedback(3))
    journal.close()
    again = Journal.continued(path, IDENTITY)
    assert again.recalls == 4
    assert path.read_bytes() == kept(path.with_name("unbroken"), 4).read_bytes()


def test_each_answer_is_on_the_disk_before_the_next_is_asked(path: Path) -> None:
    journal = Journal.fresh(path, IDENTITY)
    journal.begin()
    for number in range(3):
        journal.keep(numbered(number), None)
        assert Journal.continued(path, IDENTITY).recalls == number + 1
    journal.close()


def test_a_torn_end_is_dropped_wherever_it_was_torn(path: Path) -> None:
    whole = kept(path, 2).read_bytes()
    one = len(kept(path, 1).read_bytes())
    for length in range(one, len(whole)):
        path.write_bytes(whole[:length])
        assert Journal.continued(path, IDENTITY).recalls == 1
    journal = Journal.continued(path, IDENTITY)
    journal.begin()
    journal.keep(numbered(1), feedback(1))
    journal.close()
    assert path.read_bytes() == whole


def test_a_damaged_record_and_what_follows_it_is_dropped(path: Path) -> None:
    one = len(kept(path, 1).read_bytes())
    data = bytearray(kept(path).read_bytes())
    data[one + FRAMING.size + 2] ^= 1
    path.write_bytes(data)
    assert Journal.continued(path, IDENTITY).recalls == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"some text",
        MAGIC,
        MAGIC + FRAMING.pack(4_000_000_000, 0),
        MAGIC + FRAMING.pack(1, 3963480197) + b"\xc1",
    ],
)
def test_what_is_no_journal_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ResumeError, match="no journal of a run; leave --resume out"):
        Journal.continued(path, IDENTITY)


def test_an_answer_that_cannot_be_read_is_refused(path: Path) -> None:

    payload = msgspec.msgpack.encode(
        {"answer": msgspec.to_builtins(numbered(0)), "stamp": [0, 0, 0, 0], "regions": b"x"}
    )
    kept(path, 0)
    path.write_bytes(path.read_bytes() + FRAMING.pack(len(payload), zlib.crc32(payload)) + payload)
    with pytest.raises(ResumeError, match="no journal"):
        Journal.continued(path, IDENTITY)


def test_one_that_cannot_be_opened_is_refused(path: Path) -> None:
    with pytest.raises(ResumeError, match=r"No such file.*leave --resume out"):
        Journal.continued(path, IDENTITY)
    path.mkdir()
    with pytest.raises(ResumeError, match="not a file"):
        Journal.continued(path, IDENTITY)


def test_another_run_is_named_by_what_differs(path: Path) -> None:
    kept(path)
    before = path.read_bytes()
    with pytest.raises(ResumeError, match=r"a run with answer.query \"What\?\", and this one has \"Who\?\"; give"):
        Journal.continued(path, {**IDENTITY, "answer.query": '"Who?"'})
    with pytest.raises(ResumeError, match=r"source clip.mp4 .* has other.mp4 \(and 1 more differ\)"):
        Journal.continued(path, {**IDENTITY, "source": "other.mp4", "program": "2"})
    with pytest.raises(ResumeError, match="a run with seed unset, and this one has 3"):
        Journal.continued(path, {**IDENTITY, "seed": "3"})
    with pytest.raises(ResumeError, match="program 1, and this one has unset"):
        Journal.continued(path, {key: value for key, value in IDENTITY.items() if key != "program"})
    assert path.read_bytes() == before


def test_an_answer_about_another_frame_is_no_answer(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    with pytest.raises(ResumeError, match="answer 1 about frame 10, and this run about frame 11"):
        journal.recall(1, 11)


def test_two_runs_cannot_write_one_journal(path: Path) -> None:
    first, second = Journal.fresh(path, IDENTITY), Journal.fresh(path, IDENTITY)
    first.begin()
    first.keep(numbered(0), None)
    with pytest.raises(ResumeError, match="another run is writing"):
        second.begin()
    second.remove()
    assert Journal.continued(path, IDENTITY).recalls == 1
    first.close()


def test_a_finished_run_leaves_none(path: Path) -> None:
    journal = Journal.fresh(path, IDENTITY)
    journal.begin()
    journal.keep(numbered(0), None)
    journal.remove()
    assert not path.exists()
    journal.keep(numbered(1), None)
    journal.remove()


def test_a_file_that_took_its_place_meanwhile_stays(path: Path, tmp_path: Path) -> None:
    journal = Journal.fresh(path, IDENTITY)
    journal.begin()
    mine = tmp_path / "mine"
    mine.write_text("mine")
    mine.rename(path)
    journal.remove()
    assert path.read_text() == "mine"


def test_a_file_of_that_name_which_is_something_else_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("my notes on the journal", encoding="utf-8")
    journal = Journal.fresh(path, IDENTITY)
    with caplog.at_level(logging.WARNING):
        journal.begin()
    journal.keep(numbered(0), None)
    journal.remove()
    assert path.read_text(encoding="utf-8") == "my notes on the journal"
    assert "something else of that name" in caplog.text
    assert "cannot be continued" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal.fresh(tmp_path / "absent" / "out.resume", IDENTITY)
    journal.begin()
    journal.keep(numbered(0), None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_full_disk_is_told_once_and_what_was_kept_is_still_good(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal.fresh(path, IDENTITY)
    journal.begin()
    journal.keep(numbered(0), None)
    whole = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 4:
            return whole(fd, data[:4])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    journal.keep(numbered(1), feedback(1))
    journal.keep(numbered(2), None)
    monkeypatch.undo()
    journal.close()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert Journal.continued(path, IDENTITY).recalls == 1
