"""Record types of a recording, reading and writing a folder of logs, array compression.

Differences to green, to the pixel before and to the line above, as PNG and lossless video take them. A quarter to a
third remains of photographed tiles, half of what zlib alone leaves, and in less time.

A folder with a part for each process that wrote, one after the other: `0001.rec`, `0002.rec`… A part is `MAGIC` and
then records of msgpack, as `stream.recording.log` frames them: `Began` first, then what was said, heard and happened,
in
order. Messages are those of `stream.protocol.messages`, their arrays packed by `stream.recording.format`. What was
cut short at the end
of a part is left out, and told.
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
from stream.recording.log import framed, open_regular, read_framed
from stream.untrusted import ARRAYS_MAX, PART_BYTES_MAX, RECORD_BYTES_MAX

Array: TypeAlias = npt.NDArray[Any]

LEVEL = 1
"""Of zlib: higher ones take several times as long and save a tenth."""


def pack_array(array: Array) -> bytes:
    """The array in fewer bytes. Pictures are uint8 [H, W, 3] and [K, 3, H, W]."""
    planes = _planes(array)
    return zlib.compress((np.ascontiguousarray(array) if planes is None else _differences(planes)).data, LEVEL)


def unpack_array(data: bytes, spec: ArraySpec) -> bytes:
    """The bytes of the array that `pack_array` packed, whose dtype and shape are `spec`.

    Raises TransportError where `data` is no such array.
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
    """A view [..., 3, H, W] of a picture; None of any other array."""
    if array.dtype != np.uint8 or not array.size:
        return None
    if array.ndim == 3 and array.shape[2] == 3:
        return array.transpose(2, 0, 1)
    return array if array.ndim == 4 and array.shape[1] == 3 else None


def _differences(planes: Array) -> Array:
    """uint8, modulo 256, in the order of `planes`."""
    found = planes.copy(order="C")
    found[..., ::2, :, :] -= planes[..., 1:2, :, :]
    found[..., :, 1:] -= found[..., :, :-1].copy()
    found[..., 1:, :] -= found[..., :-1, :].copy()
    return found


def _sums(differences: Array) -> Array:
    """What `_differences` took apart."""
    planes = differences.cumsum(axis=-2, dtype=np.uint8).cumsum(axis=-1, dtype=np.uint8)
    planes[..., ::2, :, :] += planes[..., 1:2, :, :]
    return planes


MAGIC = b"arr-coc recording 2\n"
"""What every part begins with; its number is raised whenever records change."""

FORMAT = b"arr-coc recording "
"""What the parts of all formats begin with."""

SUFFIX = ".rec"


class Record(msgspec.Struct, frozen=True, tag_field="record", tag=str.lower):
    """Base of all records."""


class Began(Record, frozen=True):
    """A process begins to record: version of its program and of the messages, its source, when (UTC, ISO 8601).

    It counts frames and answers anew, and of a `live` source the time.
    """

    program: str
    source: str
    at: str
    live: bool = False
    protocol: int = PROTOCOL


class Said(Record, frozen=True):
    """To the answer stage: whom it has as a guest, what is asked, and every packet."""

    message: AnyMessage
    parts: Annotated[tuple[bytes, ...], Meta(max_length=ARRAYS_MAX)] = ()


class Heard(Record, frozen=True):
    """From the answer stage: its greeting, the question that holds, looks and answers with what they taught."""

    message: AnyMessage
    parts: Annotated[tuple[bytes, ...], Meta(max_length=ARRAYS_MAX)] = ()


class Happened(Record, frozen=True):
    """What the run told: frames, cuts, what was skipped, questions, answers, and in its summary what was dropped."""

    event: AnyEvent


AnyRecord: TypeAlias = Began | Said | Heard | Happened

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def packed(arrays: Sequence[npt.NDArray[Any]]) -> tuple[bytes, ...]:
    """The arrays of a message as its record carries them."""
    return tuple(pack_array(array) for array in arrays)


def unpacked(record: Said | Heard) -> list[bytes]:
    """The arrays of a record's message as its parts. Raises TransportError where they are not what it announces."""
    return [unpack_array(part, spec) for part, spec in zip(record.parts, record.message.arrays, strict=False)]


class Part:
    """A part that is being written; belongs to one thread. Raises OSError where its file cannot be made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        last = max((int(path.stem) for path in parts_of(folder)), default=0)
        path = folder / f"{last + 1:04}{SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._end = 0
        try:
            self._put(MAGIC)
        except OSError:
            self.close()
            raise

    def append(self, record: AnyRecord) -> None:
        """Writes a record. Raises OSError where there is no room for all of it: then nothing of it is in the file."""
        self._put(framed(_encoder.encode(record)))

    def close(self) -> None:
        os.close(self._fd)

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)


class Recording:
    """A recording that lies in a folder.

    `damage` tells of parts that were cut short or damaged, as far as they have been read.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises RecordingError where there is none."""
        self.folder = Path(folder)
        self.damage: list[str] = []
        self._parts = parts_of(self.folder)
        if not self._parts:
            raise RecordingError(f"there is no recording in {str(folder)!r}; give the folder that --record was given")

    def records(self) -> Iterator[AnyRecord]:
        """Every whole record, in order.

        Raises RecordingError where a part cannot be read, or was written in another format.
        """
        self.damage = []
        for path in self._parts:
            try:
                yield from self._records(path)
            except OSError as error:
                raise RecordingError(f"cannot read {str(path)!r}: {error.strerror}") from error

    def _records(self, path: Path) -> Iterator[AnyRecord]:
        count = 0
        with open_regular(path) as file:
            end = _check_format(path, file.read(len(MAGIC)))
            for payload, position in read_framed(file, RECORD_BYTES_MAX):
                record = _record(path, payload)
                if isinstance(record, Began):
                    _check_protocol(path, record)
                yield record
                count, end = count + 1, position
            rest = file.seek(0, os.SEEK_END) - end
        if rest or not count:
            left_out = f"{counted(rest, 'byte')} left out"
            self.damage.append(f"{path.name} was cut short or damaged after {counted(count, 'record')}; {left_out}")


def parts_of(folder: Path) -> list[Path]:
    """The parts of a recording, in order; none where there is no such folder."""
    with suppress(OSError):
        found = [path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))
    return []


@contextmanager
def claimed_folder(folder: str) -> Iterator[None]:
    """While inside, the folder is there for a recording; afterwards it goes unless one came.

    Raises OutputError where it cannot be made or written, and where it holds a recording already.
    """
    path = Path(folder)
    made = not os.path.lexists(path)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        reason = "it is a file" if os.path.isfile(path) else error.strerror
        raise OutputError(f"cannot record into {folder!r}: {reason}; name a folder, new or empty") from error
    if parts_of(path):
        raise OutputError(f"{folder!r} holds a recording already; name another folder")
    held = False
    with suppress(PermissionError):
        held = any(path.iterdir())
    if held:
        raise OutputError(f"cannot record into {folder!r}: it is not empty; name another folder, new or empty")
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"cannot record into {folder!r}: it cannot be written; name another folder")
    try:
        yield
    finally:
        if made:
            with suppress(OSError):
                path.rmdir()


def _record(path: Path, payload: bytes) -> AnyRecord:
    try:
        record = _decoder.decode(payload)
        if isinstance(record, (Said, Heard)):
            check_bounds(record.message)
        return record
    except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"{str(path)!r} holds a record that is none ({error}); it cannot be replayed") from error


def _check_format(path: Path, start: bytes) -> int:
    """Where the records begin. Raises RecordingError where this is no part, or one of another format."""
    if start == MAGIC:
        return len(MAGIC)
    if start.startswith(FORMAT):
        number = start.removeprefix(FORMAT).split(b"\n")[0].decode("ascii", "replace")
        raise RecordingError(
            f"{str(path)!r} is of format {number}, and this program reads format {_number(MAGIC)}; replay it with "
            "the version that recorded it"
        )
    if MAGIC.startswith(start):
        return 0
    raise RecordingError(f"{str(path)!r} is no part of a recording; take it out of the folder")


def _check_protocol(path: Path, began: Began) -> None:
    if began.protocol != PROTOCOL:
        raise RecordingError(
            f"{str(path)!r} holds messages of version {began.protocol}, and this program reads version {PROTOCOL}; "
            f"replay it with version {began.program}, which recorded it"
        )


def _number(magic: bytes) -> str:
    return magic.removeprefix(FORMAT).decode().strip()
