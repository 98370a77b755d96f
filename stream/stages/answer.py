"""Answer: loads the model, answers one packet at a time, and sends text, timings and feedback back."""

from __future__ import annotations

import traceback

from stream.config import Config
from stream.errors import TransportError
from stream.messages import Answered, Cancel, Credit, End, Failed, Hello, Joined, Stopped, Text, Tokens, WholeFrame
from stream.packets import feedback_arrays, frame_packet, specs_of, token_packet
from stream.snapshot import SnapshotReader
from stream.speaker import Packet, Speaker, open_speaker
from stream.stages.base import WAIT_MS, CancelledError, Control, describe
from stream.transport import Link, Received, Transport


class AnswerStage:
    """Runs in its own process or thread, at the far end of the allocate stage's link.

    `speaker` names the function that opens the model; `snapshot` is where frames lie that are not in the message.
    """

    name = "answer"

    def __init__(
        self,
        config: Config,
        speaker: str,
        endpoint: str,
        transport: Transport,
        control: Control,
        snapshot: SnapshotReader | None = None,
    ) -> None:
        self._query = config.answer.query
        self._open_speaker = lambda: open_speaker(speaker, config)
        self._endpoint = endpoint
        self._transport = transport
        self._control = control
        self._snapshot = snapshot
        self._ending = False
        self._cancelled = False

    @property
    def drops(self) -> dict[str, int]:
        """Nothing: it is sent only what it asked for."""
        return {}

    def run(self) -> None:
        link = self._transport.link(self._endpoint, check=lambda: self._look_for_cancel(link))
        try:
            link.send(Joined())
            speaker = self._open_speaker()
            self._greet(speaker, link)
            while not self._ending:
                received = self._hear(link, WAIT_MS)
                if received is not None:
                    self._answer(*self._packet(received), speaker, link)
                    link.offer(Credit())
            link.send(Stopped())
        except Exception as error:
            if not isinstance(error, CancelledError):
                link.offer(Failed(error=type(error).__name__, message=describe(error), details=traceback.format_exc()))
            raise
        finally:
            link.close()

    def _greet(self, speaker: Speaker, link: Link) -> None:
        embedding = speaker.embed(self._query)
        hello = Hello(
            model_id=speaker.model_id,
            knows_levels=speaker.knows_levels,
            known_world=speaker.known_world,
            query=embedding.text,
            arrays=specs_of(embedding.tokens),
        )
        link.send(hello, [embedding.tokens])
        link.offer(Credit())

    def _hear(self, link: Link, timeout_ms: int) -> Received | None:
        """The next packet, if one comes. Notes End; raises CancelledError on Cancel."""
        self._control.check()
        received = link.receive(timeout_ms)
        if received is not None and isinstance(received.message, Cancel):
            self._cancelled = True
        if self._cancelled:
            raise CancelledError
        if received is not None and isinstance(received.message, End):
            self._ending = True
            return None
        return received

    def _packet(self, received: Received) -> tuple[int, Packet]:
        message, parts = received.message, received.parts
        if isinstance(message, Tokens):
            return message.answer, token_packet(message, parts)
        if isinstance(message, WholeFrame):
            grid, image = message.grid, None
            if message.in_snapshot and self._snapshot is not None:
                image = self._snapshot.read(grid.padded_height_px, grid.padded_width_px)
            return message.answer, frame_packet(message, parts, image)
        raise TransportError(f"the answer stage takes packets, got {type(message).__name__}")

    def _answer(self, number: int, packet: Packet, speaker: Speaker, link: Link) -> None:
        pieces: list[str] = []
        for piece in speaker.answer(packet, self._query, lambda: self._must_stop(link)):
            pieces.append(piece)
            link.send(Text(answer=number, text=piece))
        self._look_for_cancel(link)
        spoken = speaker.last
        arrays = feedback_arrays(spoken.feedback)
        answered = Answered(
            answer=number,
            text="".join(pieces),
            tokens_used=spoken.tokens_used,
            text_tokens=spoken.text_tokens,
            encode_ms=spoken.encode_ms,
            prefill_ms=spoken.prefill_ms,
            decode_ms=spoken.decode_ms,
            feedback_stamp=None if spoken.feedback is None else spoken.feedback.stamp,
            arrays=specs_of(*arrays),
        )
        link.send(answered, arrays)

    def _must_stop(self, link: Link) -> bool:
        """Asked between tokens: whether the run was cancelled meanwhile."""
        try:
            self._look_for_cancel(link)
        except CancelledError:
            return True
        return False

    def _look_for_cancel(self, link: Link) -> None:
        """Raises CancelledError on Cancel, TransportError for a packet that nobody asked for."""
        unasked = self._hear(link, 0)
        if unasked is not None:
            raise TransportError(f"{type(unasked.message).__name__} came without a credit")
