"""Recorder of a run, in a separate thread; the run waits for it only at the end."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from stream.config import Config
from stream.events import (
    AnswerDeltaEvent,
    AnyEvent,
    AskedPicture,
    Event,
    FrameReady,
    Glance,
    Notice,
    SegmentWritten,
    VideoFragment,
)
from stream.extensions.record.format import (
    AnyRecord,
    EventRecord,
    ReceivedMessage,
    SentMessage,
    SessionStarted,
    compress_arrays,
    encode_record,
    open_part,
)
from stream.extensions.record.section import RecordSection
from stream.media import SourceInfo
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    AnswerDelta,
    AnyMessage,
    Embed,
    Embedded,
    FramePacketMessage,
    IdleGrant,
    IdlePass,
    IdleRequest,
    KeepAlive,
    Message,
    ServerHello,
    TurnGrant,
    TurnRequest,
)
from stream.stages.frame_observer import FrameObserver
from stream.transport import Envelope

WAITING_BYTES = 64 << 20
"""Limit of bytes that wait for the disk, ten whole frames of 1080p: a recording that falls further behind ends."""

CLOSE_LIMIT_S = 5.0
"""Time limit for the disk at the end of a run."""

RECORDING_ENDED = "recording-ended"
"""Code of the notice that a recording ended before its run."""

WITHOUT_NEWS = (Embed, Embedded, TurnRequest, TurnGrant, IdleRequest, IdleGrant, IdlePass, AnswerDelta, KeepAlive)
"""Messages that no answer depends on; an answer's text is in its last message too."""

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]
MakeRecord: TypeAlias = Callable[[], AnyRecord]

log = logging.getLogger(__name__)


class Recorder(FrameObserver):
    """Writer of a run's messages and events. Thread-safe; only `close` waits.

    Nothing is written before `begin`, so a run whose model cannot be loaded, or not be asked its questions, leaves no
    recording. If the disk is full, slow or gone, the recording ends at a whole record and the run continues: see
    `take_notice`.
    """

    def __init__(self, folder: str | Path, source: str, *, live: bool = False) -> None:
        self._folder = Path(folder)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[MakeRecord, int]] = deque()
        self._waiting_bytes = 0
        self._has_begun = self._over = self._closed = False
        self._notice: Notice | None = None
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        session = SessionStarted(version("arr-coc-stream"), source, now, live=live)
        self._put(lambda: session)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, config: Config, info: SourceInfo) -> Recorder | None:
        """Open the recorder of a run; None if it is not recorded."""
        folder = RecordSection.of(config).folder
        return None if folder is None else cls(folder, info.name, live=info.live)

    def link_observer(self, snapshot: SharedFrameWriter | None) -> LinkRecorder:
        return LinkRecorder(self, snapshot)

    def begin(self) -> None:
        """Write what was recorded so far and what follows: the model can be asked."""
        with self._changed:
            self._has_begun = True
            self._changed.notify()

    def observe_event(self, event: Event) -> None:
        """Record an event, except for pieces of text, which the answer contains, pictures of a frame, and video of
        an output."""
        if isinstance(event, (AnswerDeltaEvent, AskedPicture, SegmentWritten, VideoFragment)):
            return
        if isinstance(event, (FrameReady, Glance)):
            event = replace(event, slot=None, map=None)
        self._put(lambda: EventRecord(cast(AnyEvent, event)))

    def sent(self, message: Message, arrays: Arrays) -> None:
        """Record a message to the answer stage; the arrays must not change afterwards."""
        size = sum(array.nbytes for array in arrays)
        self._put(lambda: SentMessage(cast(AnyMessage, message), compress_arrays(arrays)), size)

    def received(self, message: Message, arrays: Arrays) -> None:
        """Record a message from the answer stage."""
        size = sum(array.nbytes for array in arrays)
        self._put(lambda: ReceivedMessage(cast(AnyMessage, message), compress_arrays(arrays)), size)

    def take_notice(self) -> Notice | None:
        """Return, once, the notice that the recording ended before the run, with the reason."""
        with self._changed:
            notice = self._notice
            self._notice = None
            return notice

    def close(self) -> None:
        """Wait until everything is written, at most CLOSE_LIMIT_S. Idempotent."""
        with self._changed:
            closed = self._closed
            self._closed = True
            self._over = True
            self._changed.notify()
        if closed:
            return
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            log.warning("the end of the recording in %s could not be written", self._folder)
        elif (notice := self.take_notice()) is not None:
            log.warning("%s", notice.message)

    def _put(self, make: MakeRecord, array_bytes: int = 0) -> None:
        size = array_bytes + 512  # size assumed for a record without arrays
        with self._changed:
            if self._over:
                return
            if self._waiting_bytes + size > WAITING_BYTES:
                self._end("the disk is too slow")
                return
            self._waiting.append((make, size))
            self._waiting_bytes += size
            self._changed.notify()

    def _end(self, reason: str) -> None:
        """Accept no more records; those that wait are still written, if possible. The caller holds the lock."""
        self._over = True
        message = f"the recording ends here ({reason}); {self._folder} holds what came before"
        self._notice = Notice(code=RECORDING_ENDED, message=message)
        self._changed.notify()

    def _run(self) -> None:
        """Write records in the thread; an error ends the recording only."""
        try:
            make = self._next()
            if make is None:
                return
            with closing(open_part(self._folder)) as part:
                while make is not None:
                    part.append(encode_record(make()))
                    make = self._next()
        except Exception as error:
            log.debug("the recording ends", exc_info=True)
            if isinstance(error, OSError):
                reason = error.strerror
            else:
                reason = f"{type(error).__name__}: {error}"
            with self._changed:
                self._waiting.clear()
                self._end(str(reason))

    def _next(self) -> MakeRecord | None:
        """Wait for the next record; return None at the end."""
        with self._changed:
            while not self._waiting or not self._has_begun:
                if self._over:
                    return None
                self._changed.wait()
            make, size = self._waiting.popleft()
            self._waiting_bytes -= size
            return make


class LinkRecorder:
    """Observer that records the messages of the link to the answer server; for the link's thread.

    `snapshot`: shared memory of whole frames, if any.
    """

    def __init__(self, recorder: Recorder, snapshot: SharedFrameWriter | None = None) -> None:
        self._recorder = recorder
        if snapshot is None:
            self._snapshot = None
        else:
            self._snapshot = SharedFrameReader(snapshot.descriptor)

    def observe_sent(self, message: Message, arrays: Arrays) -> None:
        """Record a message that was sent; the first request for a turn begins the recording. The image in shared memory
        is copied, because the next one replaces it."""
        if isinstance(message, TurnRequest):
            self._recorder.begin()
        if isinstance(message, WITHOUT_NEWS):
            return
        if isinstance(message, FramePacketMessage) and message.in_snapshot:
            assert self._snapshot is not None
            grid = message.grid
            image = self._snapshot.read(grid.padded_height_px, grid.padded_width_px).copy()
            arrays = [*arrays, image]
            message = replace(message, in_snapshot=False, arrays=specs_of(*arrays))
        self._recorder.sent(message, arrays)

    def observe_received(self, envelope: Envelope) -> None:
        """Record a message that was received, without an allocator's weights: a replay chooses no tokens."""
        message = envelope.message
        if isinstance(message, WITHOUT_NEWS):
            return
        if isinstance(message, ServerHello):
            message = replace(message, allocator=b"")
        self._recorder.received(message, [np.asarray(part) for part in envelope.parts])
