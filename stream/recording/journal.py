"""Answers of a captioning run for `--resume`, and whether a run can be resumed.

What is dear in such a run is its answers; everything before them is cheap and comes out the same again. A continued run
starts at the first frame, and takes those answers from the journal that the model has given already.

The file: `MAGIC`, then records of msgpack as `stream.recording.log` frames them. The first record is the run's
identity, each
other one an answer with what it taught. A last record that was cut short is dropped.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from arr_coc.types import Feedback, FrameStamp
from stream.config import STDOUT, Config
from stream.errors import NothingToContinue, ResumeError, TransportError
from stream.events import Answer
from stream.protocol.codec import checked_feedback
from stream.recording.identity import identity_of
from stream.recording.log import framed, open_regular, read_framed
from stream.untrusted import ANSWER_CHARS_MAX, JOURNAL_BYTES_MAX, KEPT_BYTES_MAX

MAGIC = b"arr-coc journal 1\n"
"""What every journal begins with; its number is raised whenever records change."""

SUFFIX = ".resume"
"""Added to the name of a run's first output."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recalled:
    """An answer of the run that is continued, and its feedback.

    The feedback's stamp is that of the earlier run: its epoch means nothing in this one.
    """

    answer: Answer
    feedback: Feedback | None


class _Identity(msgspec.Struct, frozen=True):
    identity: dict[str, str]


class _Kept(msgspec.Struct, frozen=True):
    """An answer; the arrays of its feedback as bytes: int32 [K, 3], float32 [K], float32 [K]."""

    answer: Answer
    stamp: FrameStamp | None = None
    regions: bytes = b""
    attention: bytes = b""
    similarity: bytes = b""


class Journal:
    """One run's journal at `path`. `identity` is what must be equal for answers to be equal, each item for people.

    `begin` opens it once the run is certain to start; `recall` and `keep` belong to the thread that asks. A journal
    that cannot be written is given up with one warning: the run goes on.
    """

    def __init__(
        self, path: str | Path, identity: Mapping[str, str], recalled: Mapping[int, Recalled], end: int
    ) -> None:
        self.path = Path(path)
        self.identity = dict(identity)
        self._recalled = dict(recalled)
        self._end = end
        self._fd: int | None = None
        self._ours: os.stat_result | None = None
        self.kept = len(self._recalled)

    @classmethod
    def fresh(cls, path: str | Path, identity: Mapping[str, str]) -> Journal:
        """The journal of a run that begins anew; one that lies there is replaced by `begin`."""
        return cls(path, identity, {}, 0)

    @classmethod
    def continued(cls, path: str | Path, identity: Mapping[str, str]) -> Journal:
        """The journal that lies at `path`, to be continued.

        Raises ResumeError where there is none, where it cannot be read, and where it is another run's.
        """
        path = Path(path)
        end, recalled = 0, []
        try:
            for record, at in _read(path):
                if end:
                    recalled.append(_recalled(record))
                else:
                    _compare(path, msgspec.msgpack.decode(record, type=_Identity).identity, identity)
                end = at
            if not end:
                raise ValueError
        except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            if isinstance(error, ResumeError):
                raise
            raise ResumeError(f"{str(path)!r} is no journal of a run; leave --resume out to start afresh") from None
        return cls(path, identity, {one.answer.answer: one for one in recalled}, end)

    @property
    def remains(self) -> bool:
        """Whether a file is left from which this run, as far as it came, can be continued."""
        return self._ours is not None and self.kept > 0 and self.path.exists()

    @property
    def recalls(self) -> int:
        """How many answers need not be given again."""
        return len(self._recalled)

    def begin(self) -> None:
        """Opens the file: emptied where the run is fresh, without its torn end where it is continued.

        Raises ResumeError where another run is writing it.
        """
        if self._fd is not None:
            return
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._claim(self._fd)
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            if not self._end:
                self._append(MAGIC + framed(msgspec.msgpack.encode(_Identity(self.identity))))
        except OSError as error:
            self._give_up(error)

    def recall(self, number: int, frame_index: int) -> Recalled | None:
        """The answer of that number, where it need not be given again.

        Raises ResumeError where it was about another frame than `frame_index`.
        """
        recalled = self._recalled.get(number)
        if recalled is not None and recalled.answer.frame_index != frame_index:
            self.kept = 0
            raise ResumeError(
                f"{str(self.path)!r} has answer {number} about frame {recalled.answer.frame_index}, and this run about "
                f"frame {frame_index}: the two do not see the same; leave --resume out to start afresh"
            )
        return recalled

    def keep(self, answer: Answer, feedback: Feedback | None) -> None:
        """Writes an answer down, unless it was recalled; it is on the disk when this returns."""
        if self._fd is None or answer.answer in self._recalled:
            return
        kept = _Kept(answer)
        if feedback is not None:
            arrays = (feedback.regions, feedback.attention, feedback.similarity)
            kept = _Kept(answer, feedback.stamp, *(np.ascontiguousarray(array).tobytes() for array in arrays))
        try:
            self._append(framed(msgspec.msgpack.encode(kept)))
        except OSError as error:
            self._give_up(error)
        else:
            self.kept += 1

    def close(self) -> None:
        """Lets go of the file, which stays; not to be called while answers are still kept."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def remove(self) -> None:
        """The run has finished: closes and removes the file."""
        with suppress(OSError):
            if self._ours is not None and os.path.samestat(self.path.lstat(), self._ours):
                self.path.unlink()
        self.close()

    def _claim(self, fd: int) -> None:
        """Makes sure that the file is a journal and nobody else's. Raises ResumeError, having let go of it."""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not MAGIC.startswith(os.pread(fd, len(MAGIC), 0)):
                raise OSError(0, "there is something else of that name")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._ours = os.fstat(fd)
        except BlockingIOError:
            self.close()
            raise ResumeError(
                f"another run is writing {str(self.path)!r}; wait until it has ended, or name another output"
            ) from None

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        os.fsync(self._fd)

    def _give_up(self, error: OSError) -> None:
        """The run goes on without a journal; one that was cut short is still good for the answers that it holds."""
        self.close()
        log.warning("cannot keep %s (%s); if this run is killed, it cannot be continued", self.path, error.strerror)


def _read(path: Path) -> Iterator[tuple[bytes, int]]:
    """Each whole record of a journal, and where it ends. Raises ResumeError."""
    try:
        with open_regular(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return
            for record, end in read_framed(file, KEPT_BYTES_MAX):
                if end > JOURNAL_BYTES_MAX:
                    return
                yield record, end
    except OSError as error:
        raise ResumeError(f"cannot read {str(path)!r}: {error.strerror}; leave --resume out to start afresh") from error


def _recalled(record: bytes) -> Recalled:
    """Raises ValueError or msgspec.DecodeError for what no run has written."""
    kept = msgspec.msgpack.decode(record, type=_Kept)
    if len(kept.answer.text) > ANSWER_CHARS_MAX:
        raise ValueError
    if kept.stamp is None:
        return Recalled(kept.answer, None)
    regions = np.frombuffer(kept.regions, np.int32).reshape(-1, 3)
    attention, similarity = (np.frombuffer(part, np.float32) for part in (kept.attention, kept.similarity))
    return Recalled(kept.answer, checked_feedback(Feedback(kept.stamp, regions, attention, similarity)))


def _compare(path: Path, written: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises ResumeError, naming the first item in which the two runs differ."""
    differing = [name for name in {**now, **written} if written.get(name) != now.get(name)]
    if not differing:
        return
    name, more = differing[0], len(differing) - 1
    also = f" (and {more} more differ)" if more else ""
    raise ResumeError(
        f"{str(path)!r} is of a run with {name} {written.get(name, 'unset')}, and this one has {now.get(name, 'unset')}"
        f"{also}; give the same, or leave --resume out to start afresh"
    )


def journal_path(output: str) -> Path:
    """Where the journal of a run lies whose first output is `output`."""
    return Path(f"{output}{SUFFIX}")


AFRESH = "leave --resume out to start afresh"


def journal_for(config: Config, *, resume: bool) -> Journal | None:
    """The journal of a run that is about to begin; None where it could not be continued.

    `resume`: it continues an earlier one. Raises ResumeError where that cannot be done.
    """
    obstacle = _obstacle(config)
    identity = None if obstacle else identity_of(config)
    if identity is None:
        if resume and (obstacle or _exists(config.source)):
            raise ResumeError(obstacle or f"--resume cannot read a live picture twice; {AFRESH}")
        return None
    path = journal_path(config.output.paths[0])
    if not resume:
        return Journal.fresh(path, identity)
    if path.exists():
        return Journal.continued(path, identity)
    for output in config.output.paths:
        if os.path.exists(output) and os.path.getsize(output):
            raise NothingToContinue(
                f"there is nothing to continue: {output!r} has no {path.name!r} beside it, so it is complete or was "
                f"written in another way; {AFRESH}"
            )
    return Journal.fresh(path, identity)


def could_continue(journal: Journal) -> bool:
    """Whether the journal that a fresh run is about to replace holds answers which `--resume` would have used."""
    try:
        return bool(Journal.continued(journal.path, journal.identity).recalls)
    except ResumeError:
        return False


def _obstacle(config: Config) -> str | None:
    """Why such a run is different each time, or cannot be read twice."""
    paths, pipeline = config.output.paths, config.pipeline
    if not paths:
        return "--resume needs the file of the earlier run: name it with -o"
    if any(path == STDOUT or (os.path.exists(path) and not os.path.isfile(path)) for path in paths):
        return "--resume needs outputs that are ordinary files"
    if config.capture.realtime:
        return "--resume and --realtime do not go together: a run in real time is different each time"
    if pipeline.frames == "newest" or pipeline.answers == "newest":
        return "--resume needs a run that drops nothing: set pipeline.frames=lossless and pipeline.answers=lockstep"
    if config.answer.encode == "incremental":
        return (
            "--resume needs answers that do not build on what earlier ones left in memory: "
            "give --encode sparse instead of incremental"
        )
    if config.answer.window.frames > 1:
        return "--resume needs answers that speak of one frame each: leave answer.window.frames at 1"
    if config.answer.until.question is not None:
        return "--resume goes on with answers, and --until watches: a journal holds no looks"
    if config.answer.shadow_every is not None:
        return "--resume does not repeat the checks of answers: leave answer.shadow_every out"
    if config.source == "-":
        return "--resume cannot read standard input twice; save it to a file first"
    return None


def _exists(address: str) -> bool:
    """Whether this can be opened although it is no file: an address, a camera's number, a device."""
    return "://" in address or address.isdigit() or Path(os.path.expanduser(address)).exists()
