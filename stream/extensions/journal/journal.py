"""Journal of a captioning run: each answer is written at once, so that a killed run can be continued.

Answers are the expensive part of such a run; everything before them is cheap and reproducible. A continued run starts
at the first frame, and takes the earlier answers from the journal.

Its file is a `RecordLog` of msgpack. The first record is the run's identity, each further one an answer with its
feedback. An incomplete last record is dropped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from arr_coc.errors import counted
from arr_coc.types import EMBEDDING_COMPONENTS, Feedback, FrameStamp
from stream.answer.filters import Continuation, FinishedAnswer, PriorGlance, RecalledAnswer
from stream.config import Config
from stream.errors import NothingToContinue, ResumeError, TransportError
from stream.events import Answer, AnswerInvalid, AnswerUnchanged, Detections, Glance, ShadowCheck
from stream.extension.registry import model_type_of
from stream.protocol.codec import checked_feedback
from stream.recording.identity import run_fingerprint
from stream.recording.log import RecordLog
from stream.sinks.paths import STDOUT
from stream.sinks.types import path_form
from stream.untrusted import ANSWER_CHARS_MAX, JOURNAL_BYTES_MAX, KEPT_BYTES_MAX

MAGIC = b"arr-coc journal 3\n"
"""First bytes of every journal; the number is raised whenever records change."""

SUFFIX = ".resume"
"""Suffix of the journal, after the name of a run's first output."""

NOTHING_ANSWERED = "note: nothing was answered yet; starting from the beginning"

AFRESH = "leave --resume out to start afresh"

log = logging.getLogger(__name__)


class _Identity(msgspec.Struct, frozen=True):
    identity: dict[str, str]


class _FeedbackRecord(msgspec.Struct, frozen=True):
    """Feedback with its arrays as bytes: int32 [K, 3], float32 [K], float32 [K], float32 [K, 16] or nothing."""

    stamp: FrameStamp
    regions: bytes
    attention: bytes
    similarity: bytes
    embedding: bytes = b""

    @classmethod
    def of(cls, feedback: Feedback | None) -> _FeedbackRecord | None:
        if feedback is None:
            return None
        embedding = () if feedback.embedding is None else (feedback.embedding,)
        arrays = (feedback.regions, feedback.attention, feedback.similarity, *embedding)
        return cls(feedback.stamp, *(np.ascontiguousarray(array).tobytes() for array in arrays))

    def feedback(self) -> Feedback:
        """Decode the feedback. Raises ValueError or TransportError for invalid bytes."""
        regions = np.frombuffer(self.regions, np.int32).reshape(-1, 3)
        attention, similarity = (np.frombuffer(part, np.float32) for part in (self.attention, self.similarity))
        embedding = np.frombuffer(self.embedding, np.float32).reshape(-1, EMBEDDING_COMPONENTS)
        return checked_feedback(
            Feedback(self.stamp, regions, attention, similarity, embedding if self.embedding else None)
        )


class _AnswerRecord(msgspec.Struct, frozen=True):
    """Answer with its feedback, the glance before it with its feedback, the things that it locates, and its shadow
    check."""

    answer: Answer | AnswerUnchanged | AnswerInvalid
    feedback: _FeedbackRecord | None = None
    glance: Glance | None = None
    glance_feedback: _FeedbackRecord | None = None
    detections: Detections | None = None
    check: ShadowCheck | None = None


class Journal(Continuation):
    """Journal of one run's answers at `path`. `identity`: readable items that must be equal for equal answers.

    If it cannot be written, it is closed with one warning, and the run continues.
    """

    fixes_questions = True  # it has the answers to one question

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        """Make the journal of a fresh run; `open` replaces an existing file."""
        self.path = Path(path)
        self.identity = dict(identity)
        self._log = RecordLog(self.path, MAGIC, durable=True, most_bytes=KEPT_BYTES_MAX)
        self._entries: dict[int, RecalledAnswer] = {}
        self.count = 0

    @classmethod
    def continued(cls, path: str | Path, identity: Mapping[str, str]) -> Journal:
        """Read the journal at `path`, to continue it.

        Raises ResumeError if it is missing, cannot be read, or belongs to another run.
        """
        journal = cls(path, identity)
        try:
            journal._read()
        except ResumeError:
            raise
        except OSError as error:
            raise ResumeError(f"cannot read {str(path)!r}: {error.strerror}; {AFRESH}") from error
        except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            raise ResumeError(f"{str(path)!r} is not a journal of a run; {AFRESH}") from None
        return journal

    @property
    def is_resumable(self) -> bool:
        """True if the file exists and this run can be resumed from it."""
        return self.count > 0 and self._log.is_in_place

    @property
    def earlier_answers(self) -> int:
        """Number of answers that need not be given again."""
        return len(self._entries)

    @property
    def damaged_bytes(self) -> int:
        """Bytes after the last answer that could be read: a torn end, or a damaged answer with all that follow it."""
        return self._log.torn_bytes

    def open(self) -> None:
        """Open the file: emptied for a fresh run, without its incomplete end for a continued one.

        Raises ResumeError if another run is writing it.
        """
        if self._log.is_open:
            return
        try:
            fresh = not self._log.end
            self._log.open()
            if fresh:
                self._log.append(msgspec.msgpack.encode(_Identity(self.identity)))
        except BlockingIOError:
            raise ResumeError(
                f"another run is writing {str(self.path)!r}; wait until it has ended, or name another output"
            ) from None
        except OSError as error:
            self._give_up(error)

    def recalls(self, number: int) -> bool:
        """Return whether the journal has the answer of that number."""
        return number in self._entries

    def recall(self, number: int, stamp: FrameStamp) -> RecalledAnswer | None:
        """Return the answer of that number, if the journal has it.

        Raises ResumeError if it was about another frame.
        """
        recalled = self._entries.get(number)
        if recalled is not None and recalled.event.frame_index != stamp.frame_index:
            self.count = 0
            raise ResumeError(
                f"{str(self.path)!r} has answer {number} about frame {recalled.event.frame_index}, and this run about "
                f"frame {stamp.frame_index}: the two runs read different frames; {AFRESH}"
            )
        return recalled

    def on_end(self, answer: FinishedAnswer) -> None:
        """Write an answer; it is on the disk when this returns. A run that is killed before its shadow check gives both
        again."""
        self.append(RecalledAnswer(answer.event, answer.feedback, answer.glance, tuple(answer.events)))

    def append(self, answer: RecalledAnswer) -> None:
        """Write an answer, unless it came from the journal. Of its events only detections and a check are kept."""
        event = answer.event
        assert isinstance(event, Answer | AnswerUnchanged | AnswerInvalid)
        if not self._log.is_open or event.answer in self._entries:
            return
        record = _AnswerRecord(
            event,
            _FeedbackRecord.of(answer.feedback),
            detections=next((each for each in answer.events if isinstance(each, Detections)), None),
            check=next((each for each in answer.events if isinstance(each, ShadowCheck)), None),
        )
        if answer.glance is not None:
            glance_feedback = _FeedbackRecord.of(answer.glance.feedback)
            record = replace(record, glance=answer.glance.event, glance_feedback=glance_feedback)
        try:
            self._log.append(msgspec.msgpack.encode(record))
        except OSError as error:
            self._give_up(error)
        else:
            self.count += 1

    def close(self, *, is_finished: bool) -> str | None:
        """Remove the file of a run that has finished, keep that of another, and return how it is continued."""
        if is_finished:
            self._log.remove()
            return None
        is_resumable = self.is_resumable
        self._log.close()
        if is_resumable:
            return "not finished: the same command with --resume continues from here"
        return None

    def _read(self) -> None:
        records = self._log.records()
        identity = next(records, None)
        if identity is None:
            raise ValueError
        previous = msgspec.msgpack.decode(identity, type=_Identity).identity
        differences = [name for name in {**self.identity, **previous} if previous.get(name) != self.identity.get(name)]
        if differences:
            name = differences[0]
            others = len(differences) - 1
            also = f" (and {others} more differ)" if others else ""
            raise ResumeError(
                f"{str(self.path)!r} is of a run with {name} {previous.get(name, 'unset')}, and this one has "
                f"{self.identity.get(name, 'unset')}{also}; give the same, or {AFRESH}"
            )
        for record in records:
            entry = _entry(record)
            self._entries[entry.event.answer] = entry
            if self._log.end > JOURNAL_BYTES_MAX:
                break
        self.count = len(self._entries)

    def _give_up(self, error: OSError) -> None:
        """Continue without a journal; the file stays valid for the answers in it."""
        self._log.close()
        log.warning("cannot write %s (%s); if this run is killed, it cannot be resumed", self.path, error.strerror)


def _entry(data: bytes) -> RecalledAnswer:
    """Decode an answer. Raises ValueError or msgspec.DecodeError for invalid bytes."""
    record = msgspec.msgpack.decode(data, type=_AnswerRecord)
    if len(record.answer.text) > ANSWER_CHARS_MAX:
        raise ValueError
    glance = None
    if record.glance is not None:
        glance = PriorGlance(record.glance, _feedback_of(record.glance_feedback))
    events = [event for event in (record.detections, record.check) if event is not None]
    return RecalledAnswer(record.answer, _feedback_of(record.feedback), glance, tuple(events))


def _feedback_of(record: _FeedbackRecord | None) -> Feedback | None:
    return None if record is None else record.feedback()


def journal_path(output: str) -> Path:
    """Return the path of the journal of a run whose first output is `output`."""
    return Path(f"{output}{SUFFIX}")


def journal_for(config: Config, *, resume: bool) -> Journal | None:
    """Return the journal of a run that is about to begin, with notes about one that lies there already; None if the
    run could not be continued.

    `resume`: the run continues an earlier one. Raises ResumeError if that is not possible.
    """
    obstacle = _obstacle(config)
    identity = None if obstacle else run_fingerprint(config)
    if identity is None:
        if resume and (obstacle or _exists(config.source)):
            raise ResumeError(obstacle or f"--resume cannot read a live source twice; {AFRESH}")
        return None
    path = journal_path(config.output.paths[0])
    if not resume:
        journal = Journal(path, identity)
        if could_continue(journal):
            journal.notes = (f"note: starting afresh; --resume would have continued {config.output.paths[0]}",)
        return journal
    if path.exists():
        journal = Journal.continued(path, identity)
        journal.notes = (_taking(journal) or NOTHING_ANSWERED,)
        return journal
    for output in config.output.paths:
        if os.path.exists(output) and os.path.getsize(output):
            raise NothingToContinue(
                f"there is nothing to continue: {output!r} has no {path.name!r} beside it, so it is complete or was "
                f"written in another way; {AFRESH}"
            )
    journal = Journal(path, identity)
    journal.notes = (NOTHING_ANSWERED,)
    return journal


def _taking(journal: Journal) -> str:
    """Return the note that answers are taken from a journal; empty if it has none."""
    if not journal.earlier_answers:
        return ""
    damage = ""
    if journal.damaged_bytes:
        damage = f"; what follows ({counted(journal.damaged_bytes, 'byte')}) is damaged and answered again"
    return f"note: taking {counted(journal.earlier_answers, 'answer')} from {journal.path}{damage}"


def could_continue(journal: Journal) -> bool:
    """Return True if the journal that a fresh run is about to replace has answers for `--resume`."""
    try:
        return bool(Journal.continued(journal.path, journal.identity).earlier_answers)
    except ResumeError:
        return False


def _obstacle(config: Config) -> str | None:
    """Return the reason that a run with this configuration cannot be continued; None if it can."""
    paths = config.output.paths
    pipeline = config.pipeline
    if not paths:
        return "--resume needs the file of the earlier run: name it with -o"
    if any(
        path == STDOUT or path_form(path) != "file" or (os.path.exists(path) and not os.path.isfile(path))
        for path in paths
    ):
        return "--resume needs outputs that are ordinary files"
    if config.capture.realtime:
        return "--resume is incompatible with --realtime: a run in real time is different each time"
    if config.capture.follow:
        return f"--resume cannot continue a run with --follow: its file has grown since; {AFRESH}"
    if pipeline.frames == "newest" or pipeline.answers == "newest":
        return "--resume needs a run that drops nothing: set pipeline.frames=lossless and pipeline.answers=lockstep"
    if config.answer.encode == "incremental":
        return (
            "--resume needs answers that do not build on what earlier ones left in memory: "
            "give --encode sparse instead of incremental"
        )
    model_type = model_type_of(config)
    if model_type is not None and config.answer.memory.frames > 1:
        return f"--resume needs answers about one frame each from {model_type.option}: leave answer.memory.frames at 1"
    if config.watch:
        return "--resume is incompatible with watches and --until: a journal has no yes/no checks"
    if config.source == "-":
        return "--resume cannot read standard input twice; save it to a file first"
    return None


def _exists(address: str) -> bool:
    """Return True if a source exists although it cannot be read twice: an address, a camera's number, a device."""
    return "://" in address or address.isdigit() or Path(os.path.expanduser(address)).exists()
