"""Replay of a recording: the same packets and questions, in the same order, to the same model.

No source, no texture and no allocation take part. Glances, yes/no checks and answers come as separate events, each
beside the recorded one; all other events come as they were.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import NS_PER_S, Feedback, Question, TokenPacket
from stream.answer.memory import remember
from stream.answer.model import CONFIGURED, AnswerModel, ClientQuestion, Packet, ask_alone, load_answer_model
from stream.config import Config
from stream.errors import RecordingError
from stream.events import AnswerPoint, Event, FrameReady, Glance, Summary, YesNoResult
from stream.extensions.record.format import (
    AnyRecord,
    ReceivedMessage,
    Recording,
    SentMessage,
    SessionStarted,
    decompress_arrays,
)
from stream.extensions.record.provenance import config_of, parse_provenance
from stream.protocol.codec import feedback_of, frame_packet, token_packets
from stream.protocol.messages import (
    AnswerReply,
    Cancel,
    Connect,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    IdlePacketMessage,
    IdleReply,
    ServerHello,
    TokenPacketMessage,
    TurnExpired,
    YesNoReply,
)
from stream.recording.identity import UNKNOWN, AnswerProvenance, weights_of
from stream.runtime.run import EventRebaser

CLIENT = b"replay"
"""Only client of the model."""

TOLERANCE = 1e-3
"""Largest difference of probabilities that are the same: it is rounding."""

REPLAYED_EVENTS = (AnswerPoint, Glance, YesNoResult, Summary)
"""Recorded events that a replay makes anew."""


class ReplayedAnswer(Event, frozen=True, tag="replayed"):
    """An answer given again, as the model writes it. `check`: a shadow check, compared with the one before, which was
    about fewer tokens. `fields`: as in AnswerPoint; also None if the answer does not fit the schema."""

    answer: int
    frame_index: int
    pts_s: float
    query: str
    recorded: str
    text: str
    recorded_tokens: int
    text_tokens: int
    check: bool
    same: bool
    fields: dict[str, Any] | None = None


class ReplayedYesNo(Event, frozen=True, tag="looked-again"):
    """A yes/no check of a watch made again; probabilities as in `CheckScore`."""

    frame_index: int
    pts_s: float
    question: str
    recorded_yes: float
    yes: float
    recorded_certain: float
    certain: float
    same: bool


class ReplayedGlance(Event, frozen=True, tag="glanced-again"):
    """A glance taken again. `difference`: the largest between the attention now and then, each a share of all."""

    frame_index: int
    pts_s: float
    query: str
    tokens_used: int
    difference: float
    same: bool


class ReplaySummary(Event, frozen=True, tag="replay-summary"):
    """The end of a replay. `unanswered` packets had no answer: the run or the model stopped, or a cut cancelled it.

    `frames` is the recorded number of frames; `first_s` the media time of the first one with a difference. `recorded`
    is the run's summary (of its last process, if one was started again), None if the recording does not reach its end;
    `damage` lists what was cut short or damaged.
    """

    answers: int
    looks: int
    glances: int
    differing: int
    frames: int
    first_s: float | None
    unanswered: int
    damage: tuple[str, ...]
    recorded: Summary | None


class Replay:
    """Answers and glances of a model at a recording, record by record; `summary` may be asked for at any moment.

    `provenance` is that of the recorded answers. The model is reset at each new connection of the recorded run. If a
    process was started again, numbers and times continue as in its run.
    """

    def __init__(self, model: AnswerModel, provenance: AnswerProvenance) -> None:
        self._model = model
        self._provenance = provenance
        self._question = Question("")
        self._packet: Packet | None = None
        self._overview: TokenPacket | None = None
        self._idle_packets: dict[int, list[TokenPacket]] = {}
        self._text = ""
        self._last = -1
        self._rebaser = EventRebaser()
        self._frames = self._answers = self._looks = self._glances = self._differences = self._unanswered = 0
        self._first_s: float | None = None
        self._recorded: Summary | None = None

    def take(self, record: AnyRecord) -> Iterator[Event]:
        """Yield the events that a record makes.

        Raises what the model raises; TransportError for an invalid packet; RecordingError if another model
        went on.
        """
        if isinstance(record, SessionStarted):
            self._rebaser.live = record.live
            self._rebaser.next_epoch(0)
            self._last = -1
            self._recorded = None
        elif isinstance(record, SentMessage):
            self._send(record)
        elif isinstance(record, ReceivedMessage):
            for event in self._receive(record):
                yield self._counted(self._rebaser.apply(event))
        else:
            event = self._counted(self._rebaser.apply(record.event))
            if not isinstance(event, REPLAYED_EVENTS):
                yield event

    def summary(self, damage: list[str]) -> ReplaySummary:
        """Return the summary of the records so far."""
        return ReplaySummary(
            answers=self._answers,
            looks=self._looks,
            glances=self._glances,
            differing=self._differences,
            frames=self._frames,
            first_s=self._first_s,
            unanswered=self._unanswered + (self._packet is not None),
            damage=tuple(damage),
            recorded=self._recorded,
        )

    def _send(self, record: SentMessage) -> None:
        message = record.message
        if isinstance(message, GlancePacketMessage):
            self._overview = remember(self._model.memory, CLIENT, token_packets(message, decompress_arrays(record)))
            self._text = message.text
            return
        if isinstance(message, IdlePacketMessage):
            self._idle_packets[message.number] = token_packets(message, decompress_arrays(record))
        if not isinstance(message, (Connect, TokenPacketMessage, FramePacketMessage, Cancel)):
            return
        self._unanswered += self._packet is not None
        self._packet = self._overview = None
        if isinstance(message, Cancel):
            return
        if isinstance(message, Connect):
            self._model.drop_client(CLIENT)
            self._idle_packets.clear()
            return
        parts = decompress_arrays(record)
        if isinstance(message, TokenPacketMessage):
            self._packet = remember(self._model.memory, CLIENT, token_packets(message, parts))
        else:
            self._packet = frame_packet(message, parts)
        self._question = message.question

    def _receive(self, record: ReceivedMessage) -> Iterator[Event]:
        message = record.message
        if isinstance(message, ServerHello):
            now = parse_provenance(message.provenance)
            if (now.weights, now.settings) != (self._provenance.weights, self._provenance.settings):
                raise RecordingError(
                    "from here on the recording was answered by another model or by other settings: a server was "
                    "exchanged for another; record it again to replay all of it"
                )
        elif isinstance(message, TurnExpired):
            self._packet = self._overview = None
        elif isinstance(message, IdleReply):
            packets = self._idle_packets.pop(message.number, None)
            if packets is not None and message.tokens:  # the reading ahead was not given up
                reading = self._model.read_ahead(CLIENT, packets)
                for _ in reading.steps():
                    pass
                reading.commit()
        elif self._overview is not None and isinstance(message, GlanceReply):
            yield self._repeat_glance(self._overview, message, feedback_of(message, decompress_arrays(record)))
        elif self._packet is not None and isinstance(message, YesNoReply):
            yield from self._repeat_checks(self._packet, message)
        elif self._packet is not None and isinstance(message, AnswerReply):
            yield self._repeat_answer(self._packet, message)

    def _repeat_glance(self, overview: TokenPacket, message: GlanceReply, recorded: Feedback | None) -> ReplayedGlance:
        feedback = self._model.glance(CLIENT, overview, self._text).feedback
        assert feedback is not None
        self._overview = None
        difference = 1.0
        if recorded is not None and recorded.attention.shape == feedback.attention.shape:
            difference = float(np.abs(feedback.attention - recorded.attention).max(initial=0.0))
        return ReplayedGlance(
            frame_index=overview.stamp.frame_index,
            pts_s=overview.stamp.media_ns / NS_PER_S,
            query=self._text,
            tokens_used=message.work.tokens_used,
            difference=difference,
            same=difference <= TOLERANCE,
        )

    def _repeat_checks(self, packet: Packet, message: YesNoReply) -> Iterator[ReplayedYesNo]:
        if not self._question.wants_answer:
            self._packet = None
        checks = self._question.checks
        if len(message.scores) != len(checks):
            return  # as its client refused it
        question = ClientQuestion(CLIENT, packet, self._question)
        ask_alone(self._model, question)
        for text, (yes, certainty), recorded in zip(checks, question.scores, message.scores, strict=True):
            yield ReplayedYesNo(
                frame_index=packet.stamp.frame_index,
                pts_s=packet.stamp.media_ns / NS_PER_S,
                question=text,
                recorded_yes=recorded.yes,
                yes=yes,
                recorded_certain=recorded.certain,
                certain=certainty,
                same=max(abs(yes - recorded.yes), abs(certainty - recorded.certain)) <= TOLERANCE,
            )

    def _repeat_answer(self, packet: Packet, message: AnswerReply) -> ReplayedAnswer:
        question = ClientQuestion(CLIENT, packet, dataclasses.replace(self._question, checks=()))
        text = ask_alone(self._model, question)
        assert question.stats is not None
        tokens = question.stats.work.text_tokens
        same = (text, tokens) == (message.text, message.work.text_tokens)
        check = message.answer == self._last
        self._last = message.answer
        self._packet = None
        return ReplayedAnswer(
            answer=message.answer,
            frame_index=packet.stamp.frame_index,
            pts_s=packet.stamp.media_ns / NS_PER_S,
            query=self._question.text,
            recorded=message.text,
            text=text,
            recorded_tokens=message.work.text_tokens,
            text_tokens=tokens,
            check=check,
            same=same,
            fields=self._fields_of(text),
        )

    def _fields_of(self, text: str) -> dict[str, Any] | None:
        if self._question.schema is None:
            return None
        with suppress(ValueError):
            return AnswerSchema.parse(self._question.schema).fields_of(text)
        return None

    def _counted(self, event: Event) -> Event:
        """Count an event for the summary."""
        if isinstance(event, Summary):
            self._recorded = event
        elif isinstance(event, FrameReady):
            self._frames += 1
        elif isinstance(event, ReplayedAnswer):
            self._answers += 1
        elif isinstance(event, ReplayedYesNo):
            self._looks += 1
        elif isinstance(event, ReplayedGlance):
            self._glances += 1
        if isinstance(event, (ReplayedAnswer, ReplayedGlance, ReplayedYesNo)) and not event.same:
            self._differences += 1
            if self._first_s is None:
                self._first_s = event.pts_s
        return event


def answered_by(recording: Recording) -> AnswerProvenance:
    """Return the provenance of a recording's answers. Raises RecordingError if the recording has none."""
    for record in recording.records():
        if isinstance(record, ReceivedMessage) and isinstance(record.message, ServerHello):
            return parse_provenance(record.message.provenance)
    raise RecordingError(
        f"nothing was answered in {str(recording.folder)!r}: the run ended before its model was loaded"
    )


def open_recorded(provenance: AnswerProvenance, config: Config, model_loader: str = CONFIGURED) -> AnswerModel:
    """Load the model of `config`, which must be the recorded one, with as many threads as it had.

    Raises RecordingError if it is another one, and what `load_answer_model` raises.
    """
    name = config.answer.model
    opened = None
    if config.model_key is None:
        import torch

        torch.set_num_threads(min(provenance.threads, os.cpu_count() or 1))
    weights = weights_of(config)
    if weights == UNKNOWN:  # of the hub, and not here yet
        opened = load_answer_model(model_loader, config)
        weights = weights_of(config)
    if weights != provenance.weights:
        raise RecordingError(
            f"recorded with another model than {name or 'the bundled one'}: {provenance.model or 'the bundled one'} "
            f"({provenance.weights}) there, {weights} here; give --model the folder or name of that one"
        )
    return opened or load_answer_model(model_loader, config)


def replay_config(provenance: AnswerProvenance, model: str | None, device: str | None, dtype: str | None) -> Config:
    """Return the configuration that answers as the recorded one did.

    Args:
        provenance: Recorded model and settings.
        model: Present folder of the model's files; None for the recorded one.
        device: Device of the model; None for the recorded one.
        dtype: Precision of the model; None for the recorded one.

    Raises:
        RecordingError: The recorded settings cannot be read.
    """
    config = config_of(provenance)
    changes = {"model": model or provenance.model, "device": device, "dtype": dtype}
    answer = config.answer.model_copy(update={key: value for key, value in changes.items() if value is not None})
    return config.model_copy(update={"answer": answer})
