"""Recording of a run: the messages to and from its answer stage, and its events.

A folder with a part for each process that wrote: `0001.rec`, `0002.rec`… A part is a `RecordLog` of msgpack:
`SessionStarted` first, then messages sent and received, and events, in order. Messages are those of
`stream.protocol.messages`, with compressed arrays. An incomplete record at the end of a part is left out and reported.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from arr_coc.errors import counted
from stream.errors import OutputError, RecordingError, TransportError
from stream.events import AnyEvent
from stream.protocol.messages import PROTOCOL, AnyMessage, ArraySpec, check_bounds
from stream.recording.log import ForeignFile, RecordLog
from stream.untrusted import ARRAYS_MAX, PART_BYTES_MAX

MAGIC = b"arr-coc recording 3\n"
"""First bytes of every part; the number is raised whenever records change."""

FORMAT = b"arr-coc recording "
"""First bytes of the parts of all formats."""

SUFFIX = ".rec"


Array: TypeAlias = npt.NDArray[Any]


class _Record(msgspec.Struct, frozen=True, tag_field="record"):
    """Base of all records."""


class SessionStarted(_Record, frozen=True, tag="session_started"):
    """Start of a process: version of its program and of the messages, its source, and the time (UTC, ISO 8601).

    Numbers of frames and answers begin again, and so does the media time of a `live` source.
    """

    program: str
    source: str
    at: str
    live: bool = False
    protocol: int = PROTOCOL


class SentMessage(_Record, frozen=True, tag="sent"):
    """Message to the answer stage: a new client, a question, a packet."""

    message: AnyMessage
    parts: Annotated[tuple[bytes, ...], Meta(max_length=ARRAYS_MAX)] = ()


class ReceivedMessage(_Record, frozen=True, tag="received"):
    """Message from the answer stage: its greeting, an answer or check with its feedback."""

    message: AnyMessage
    parts: Annotated[tuple[bytes, ...], Meta(max_length=ARRAYS_MAX)] = ()


class EventRecord(_Record, frozen=True, tag="event"):
    """Event of the run: a frame, a cut, a skipped item, a question, an answer, or the summary."""

    event: AnyEvent


AnyRecord: TypeAlias = SessionStarted | SentMessage | ReceivedMessage | EventRecord

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode_record(record: AnyRecord) -> bytes:
    """Return the record as a payload of a part."""
    return _encoder.encode(record)


def compress_arrays(arrays: Sequence[Array]) -> tuple[bytes, ...]:
    """Return the arrays of a message in the form of its record."""
    return tuple(map(compress_array, arrays))


def decompress_arrays(record: SentMessage | ReceivedMessage) -> list[bytes]:
    """Return the arrays of a record's message as its parts. Raises TransportError if they do not match its header."""
    return [decompress_array(part, spec) for part, spec in zip(record.parts, record.message.arrays, strict=False)]


def compress_array(array: Array) -> bytes:
    """Compress an array without loss. Pictures are uint8 [H, W, 3] and [K, 3, H, W].

    Pictures are first replaced by differences to green, to the pixel before and to the line above, as in PNG and
    lossless video. Photographed tiles shrink to a quarter or a third, half the size of zlib alone, and in less time;
    OpenCV's PNG encoder takes twice the time for the same size.
    """
    planes = _planes(array)
    # level 1: higher ones take several times as long and save a tenth
    return zlib.compress((np.ascontiguousarray(array) if planes is None else _differences(planes)).data, 1)


def decompress_array(data: bytes, spec: ArraySpec) -> bytes:
    """Return the bytes of an array that `compress_array` compressed, of the dtype and shape `spec`.

    Raises TransportError if `data` is not such an array.
    """
    dtype = np.dtype(spec.dtype)
    size = math.prod(spec.shape) * dtype.itemsize
    if size > PART_BYTES_MAX:
        raise TransportError(f"an array of {spec.dtype}{list(spec.shape)} is larger than any that is sent")
    inflater = zlib.decompressobj()
    try:
        flat = inflater.decompress(data, size + 1)
    except (zlib.error, OverflowError) as error:
        raise TransportError(f"an array of {spec.dtype}{list(spec.shape)} cannot be unpacked: {error}") from None
    if len(flat) != size:
        raise TransportError(f"an array of {spec.dtype}{list(spec.shape)} was packed with another size")
    array = np.empty(spec.shape if size else 0, dtype)
    planes = _planes(array)
    if planes is None:
        return flat
    planes[:] = _sums(np.frombuffer(flat, np.uint8).reshape(planes.shape))
    return array.tobytes()


def _planes(array: Array) -> Array | None:
    """Return a view [..., 3, H, W] of a picture; None for any other array."""
    if array.dtype != np.uint8 or not array.size:
        return None
    if array.ndim == 3 and array.shape[2] == 3:
        return array.transpose(2, 0, 1)
    if array.ndim == 4 and array.shape[1] == 3:
        return array
    return None


def _differences(planes: Array) -> Array:
    """Return the differences of neighbours, uint8 modulo 256, in the order of `planes`."""
    differences = planes.copy(order="C")
    differences[..., ::2, :, :] -= planes[..., 1:2, :, :]
    differences[..., :, 1:] -= differences[..., :, :-1].copy()
    differences[..., 1:, :] -= differences[..., :-1, :].copy()
    return differences


def _sums(differences: Array) -> Array:
    """Return the planes whose `_differences` are given."""
    planes = differences.cumsum(axis=-2, dtype=np.uint8).cumsum(axis=-1, dtype=np.uint8)
    planes[..., ::2, :, :] += planes[..., 1:2, :, :]
    return planes


FOLDER_MODE = 0o700
"""Of a new recording."""


def open_part(folder: Path) -> RecordLog:
    """Open the next part of a recording for writing, in a folder that is made for its user alone: it shows what cameras
    saw. Raises OSError if its file cannot be made."""
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    last = max((int(path.stem) for path in parts_of(folder)), default=0)
    part = RecordLog(folder / f"{last + 1:04}{SUFFIX}", MAGIC)
    part.open(new=True)
    return part


class Recording:
    """Recording in a folder.

    `damage`: messages about incomplete or damaged parts among those read so far.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raise RecordingError if the folder has no recording."""
        self.folder = Path(folder)
        self.damage: list[str] = []
        self._parts = parts_of(self.folder)
        if not self._parts:
            raise RecordingError(f"there is no recording in {str(folder)!r}; give the folder that --record was given")

    def records(self) -> Iterator[AnyRecord]:
        """Yield every whole record, in order.

        Raises RecordingError if a part cannot be read, or was written in another format.
        """
        self.damage = []
        for path in self._parts:
            try:
                yield from self._records(path)
            except OSError as error:
                raise RecordingError(f"cannot read {str(path)!r}: {error.strerror}") from error

    def _records(self, path: Path) -> Iterator[AnyRecord]:
        count = 0
        part = RecordLog(path, MAGIC)
        try:
            for payload in part.records():
                count += 1
                record = _record(path, payload)
                if isinstance(record, SessionStarted):
                    _check_protocol(path, record)
                yield record
        except ForeignFile as error:
            raise _format_error(path, error.start) from None
        if part.torn_bytes or not count:
            left_out = f"{counted(part.torn_bytes, 'byte')} left out"
            self.damage.append(f"{path.name} was cut short or damaged after {counted(count, 'record')}; {left_out}")


def parts_of(folder: Path) -> list[Path]:
    """Return the parts of a recording, in order; an empty list if the folder does not exist."""
    with suppress(OSError):
        parts = [path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal()]
        return sorted(parts, key=lambda path: int(path.stem))
    return []


@contextmanager
def claimed_folder(folder: str) -> Iterator[None]:
    """Context manager that makes a folder for a recording, and removes it at the end if it is empty.

    Raises OutputError if the folder cannot be made or written, or is not empty.
    """
    path = Path(folder)
    is_new = not os.path.lexists(path)
    try:
        path.mkdir(FOLDER_MODE, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if os.path.isfile(path) else error.strerror
        raise OutputError(f"cannot record into {folder!r}: {reason}; name a folder, new or empty") from error
    if parts_of(path):
        raise OutputError(f"{folder!r} holds a recording already; name another folder")
    has_entries = False
    with suppress(PermissionError):
        has_entries = any(path.iterdir())
    if has_entries:
        raise OutputError(f"cannot record into {folder!r}: it is not empty; name another folder, new or empty")
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"cannot record into {folder!r}: it cannot be written; name another folder")
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):
                path.rmdir()


def _record(path: Path, payload: bytes) -> AnyRecord:
    try:
        record = _decoder.decode(payload)
        if isinstance(record, (SentMessage, ReceivedMessage)):
            check_bounds(record.message)
        return record
    except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"{str(path)!r} has an invalid record ({error}); it cannot be replayed") from error


def _format_error(path: Path, start: bytes) -> RecordingError:
    """Return the error for a file with this beginning: a part of another format, or no part."""
    if not start.startswith(FORMAT):
        return RecordingError(f"{str(path)!r} is not a part of a recording; remove it from the folder")
    part_format, reader_format = (
        magic.removeprefix(FORMAT).split(b"\n")[0].decode("ascii", "replace") for magic in (start, MAGIC)
    )
    return RecordingError(
        f"{str(path)!r} is of format {part_format}, and this program reads format {reader_format}; replay it with the "
        "version that recorded it"
    )


def _check_protocol(path: Path, session: SessionStarted) -> None:
    if session.protocol != PROTOCOL:
        raise RecordingError(
            f"{str(path)!r} holds messages of version {session.protocol}, and this program reads version {PROTOCOL}; "
            f"replay it with version {session.program}, which recorded it"
        )
