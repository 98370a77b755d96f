"""Recording thread: no caller waits for it, and if it cannot continue it reports that once and ends cleanly."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from arr_coc.types import FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.events import AnswerDeltaEvent, AskedPicture, FrameMap, Notice
from stream.extensions.record import format as format_module
from stream.extensions.record import recorder as module
from stream.extensions.record.format import (
    AnyRecord,
    EventRecord,
    ReceivedMessage,
    Recording,
    SentMessage,
    SessionStarted,
    decompress_arrays,
    encode_record,
)
from stream.extensions.record.recorder import RECORDING_ENDED, LinkRecorder, Recorder
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.codec import frame_message, frame_packet, specs_of, token_message
from stream.protocol.messages import (
    AnswerDelta,
    FramePacketMessage,
    KeepAlive,
    RequestLost,
    ServerHello,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.recording.log import RecordLog
from stream.transport import Envelope
from tests.support.events import QUESTION, frame, make_token_packet
from tests.support.network import until


def notice(number: int) -> Notice:
    return Notice(code="n", message=str(number))


def token_packet_of(tokens: int) -> TokenPacket:
    return make_token_packet(FrameStamp(0, 0, 0), TileGrid.of(64, 96), tokens, 7)


HELLO = ServerHello(model_id="m", knows_levels=True, known_world=None, provenance="{}")


def met(folder: Path, source: str = "") -> Recorder:
    """Recorder of a run whose model has greeted."""
    recorder = Recorder(folder, source)
    recorder.begin()
    recorder.received(HELLO, [])
    return recorder


def recorded(folder: Path) -> list[AnyRecord]:
    """Return the records after the greeting."""
    session, greeting, *rest = Recording(folder).records()
    assert isinstance(session, SessionStarted)
    assert greeting == ReceivedMessage(HELLO)
    return rest


class StuckLog(RecordLog):
    """Log on a disk that blocks writes until `free` is set."""

    free = threading.Event()

    def append(self, payload: bytes) -> None:
        assert self.free.wait(30)
        super().append(payload)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    monkeypatch.setattr(StuckLog, "free", threading.Event())
    monkeypatch.setattr(format_module, "RecordLog", StuckLog)
    return StuckLog.free


def test_messages_and_events_are_written_in_order(tmp_path: Path) -> None:
    recorder = met(tmp_path / "a", "clip.mp4")
    message, arrays = token_message(3, 4, token_packet_of(2), QUESTION)
    recorder.observe_event(notice(1))
    recorder.sent(message, arrays)
    recorder.received(RequestLost(answer=1, reason="x"), [])
    recorder.close()
    event, outgoing, incoming = recorded(tmp_path / "a")
    session = next(Recording(tmp_path / "a").records())
    assert isinstance(session, SessionStarted)
    assert (session.source, session.program) == ("clip.mp4", "0.1.0")
    assert event == EventRecord(notice(1))
    assert incoming == ReceivedMessage(RequestLost(answer=1, reason="x"))
    assert isinstance(outgoing, SentMessage)
    assert outgoing.message == message
    assert decompress_arrays(outgoing) == [array.tobytes() for array in arrays]
    assert recorder.take_notice() is None


def test_a_run_that_never_meets_a_model_leaves_no_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a", "clip.mp4")
    recorder.observe_event(notice(1))
    recorder.close()
    assert not (tmp_path / "a").exists()
    recorder = Recorder(tmp_path / "a", "clip.mp4")
    recorder.observe_event(notice(1))
    recorder.received(HELLO, [])
    recorder.begin()
    recorder.close()
    assert list(Recording(tmp_path / "a").records())[1:] == [EventRecord(notice(1)), ReceivedMessage(HELLO)]


def test_pieces_of_text_and_what_pictures_are_drawn_from_are_left_out(tmp_path: Path) -> None:
    recorder = met(tmp_path)
    event = frame(0, 0.0, slot=3, map=FrameMap(rows=1, cols=1, relevance=b"\0", regions=b""))
    recorder.observe_event(AnswerDeltaEvent(answer=0, text="a "))
    recorder.observe_event(AskedPicture(frame_index=0, pts_s=0.0, jpeg=b"\xff\xd8"))
    recorder.observe_event(event)
    recorder.close()
    (reported,) = recorded(tmp_path)
    assert reported == EventRecord(frame(0, 0.0))


def test_a_run_does_not_wait_for_a_blocked_disk(
    tmp_path: Path, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_LIMIT_S", 0.05)
    recorder = met(tmp_path)
    for number in range(100):
        recorder.observe_event(notice(number))
    with caplog.at_level(logging.WARNING):
        recorder.close()
        recorder.close()
    assert caplog.text.count("could not be written") == 1
    stuck.set()
    recorder._thread.join(30)
    assert len(recorded(tmp_path)) == 100


def test_written_records_wait_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 20_000)
    recorder = met(tmp_path)
    for number in range(10):
        message, arrays = token_message(number, number, token_packet_of(2), QUESTION)
        recorder.sent(message, arrays)
        until(lambda: not recorder._waiting)
    recorder.close()
    assert recorder.take_notice() is None
    assert len(recorded(tmp_path)) == 10


def test_a_recording_ends_after_its_queue_if_the_disk_is_too_slow(
    tmp_path: Path, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 20_000)
    recorder = met(tmp_path)
    for number in range(10):
        message, arrays = token_message(number, number, token_packet_of(2), QUESTION)
        recorder.sent(message, arrays)
    reported = recorder.take_notice()
    assert reported is not None
    assert reported.code == RECORDING_ENDED
    assert reported.message == f"the recording ends here (the disk is too slow); {tmp_path} holds what came before"
    assert recorder.take_notice() is None
    recorder.observe_event(notice(1))
    stuck.set()
    recorder.close()
    numbers = [
        r.message.answer
        for r in recorded(tmp_path)
        if isinstance(r, SentMessage) and isinstance(r.message, TokenPacketMessage)
    ]
    assert numbers == list(range(len(numbers)))
    assert 2 <= len(numbers) <= 3, "what had been taken is written, and nothing after a gap"


def test_a_full_disk_ends_it_at_a_whole_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = RecordLog.append

    def full(part: RecordLog, payload: bytes) -> None:
        if payload == encode_record(EventRecord(notice(2))):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(part, payload)

    monkeypatch.setattr(RecordLog, "append", full)
    recorder = met(tmp_path)
    for number in range(5):
        recorder.observe_event(notice(number))
    until(lambda: recorder._over)
    reported = recorder.take_notice()
    assert reported is not None
    assert "(No space left on device)" in reported.message
    assert not recorder._waiting, "what cannot be written is not kept"
    recorder.close()
    assert recorded(tmp_path) == [EventRecord(notice(0)), EventRecord(notice(1))]


def test_errors_at_the_very_end_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        met(tmp_path / "file").close()
    assert "the recording ends here (" in caplog.text


def test_an_internal_error_ends_the_recording_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arrays: list[np.ndarray]) -> tuple[bytes, ...]:
        if arrays:
            raise ValueError("no such array")
        return ()

    monkeypatch.setattr(module, "compress_arrays", fail)
    recorder = met(tmp_path)
    recorder.sent(RequestLost(answer=1, reason="x"), [np.zeros(1, np.uint8)])
    until(lambda: recorder._over)
    recorder.sent(RequestLost(answer=1, reason="y"), [])
    reported = recorder.take_notice()
    assert reported is not None
    assert "(ValueError: no such array)" in reported.message
    recorder.close()
    assert recorded(tmp_path) == []


def talk(folder: Path, snapshot: SharedFrameWriter | None = None) -> tuple[Recorder, LinkRecorder]:
    recorder = met(folder)
    return recorder, LinkRecorder(recorder, snapshot)


def test_messages_that_no_answer_depends_on_are_left_out(tmp_path: Path) -> None:
    recorder, observer = talk(tmp_path)
    for message in (TurnRequest(), RequestLost(answer=1, reason="x")):
        observer.observe_sent(message, [])
    for received in (
        TurnGrant(turn=1),
        AnswerDelta(answer=0, text="a"),
        KeepAlive(),
        replace(HELLO, allocator=b"weights"),
    ):
        observer.observe_received(Envelope(received))
    recorder.close()
    assert recorded(tmp_path) == [SentMessage(RequestLost(answer=1, reason="x")), ReceivedMessage(HELLO)]


def test_a_recording_begins_with_the_first_turn(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "clip.mp4")
    observer = LinkRecorder(recorder)
    observer.observe_received(Envelope(HELLO))
    observer.observe_sent(TurnRequest(), [])
    recorder.close()
    assert recorded(tmp_path) == []


def test_arrays_that_came_are_recorded_too(tmp_path: Path) -> None:
    recorder, observer = talk(tmp_path)
    array = np.arange(6, dtype=np.float32)
    observer.observe_received(
        Envelope(RequestLost(answer=1, reason="x", arrays=specs_of(array)), (memoryview(array.tobytes()),))
    )
    recorder.close()
    (received,) = recorded(tmp_path)
    assert isinstance(received, ReceivedMessage)
    assert decompress_arrays(received) == [array.tobytes()]


def test_a_frame_in_the_snapshot_is_recorded_as_it_was_when_it_was_sent(tmp_path: Path, stuck: threading.Event) -> None:
    snapshot = SharedFrameWriter()
    recorder, observer = talk(tmp_path, snapshot)
    grid = TileGrid.of(64, 96)
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    packet = FramePacket(FrameStamp(5, 0, 0), grid, np.zeros((1, 3), np.int32), np.ones((2, 3), np.float32), image)
    snapshot.write(image)
    observer.observe_sent(*frame_message(0, 1, packet, QUESTION, in_snapshot=True))
    snapshot.write(np.zeros_like(image))
    stuck.set()
    recorder.close()
    snapshot.close()
    (record,) = recorded(tmp_path)
    assert isinstance(record, SentMessage)
    assert isinstance(record.message, FramePacketMessage)
    np.testing.assert_array_equal(frame_packet(record.message, decompress_arrays(record)).image, image)
