"""Answers as they come; peak memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from evaluation.errors import ResultsError

Row = dict[str, Any]

KEY = ("model", "dtype", "suite", "suite_hash", "strategy", "budget", "encode", "seed", "max_tokens", "id")
"""Fields that identify an answer: one with the same values is not asked for again."""

PIECE_BYTES = 1 << 20

MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")


def key_of(row: Row) -> tuple[Any, ...]:
    """A row's key. Raises KeyError if it lacks a part of it."""
    return tuple(row[name] for name in KEY)


def model_hash(folder: Path) -> str:
    """Names a model by the content of its weights, configuration and tokenizer, those in subfolders too."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MODEL_FILES for path in folder.rglob(pattern)}):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    return digest.hexdigest()[:16]


class AnswerJournal:
    """The rows that a file holds, and the rows that are added to it; a context manager.

    What a killed run has left half written at the end is cut off. Raises ResultsError if the file cannot be read or
    written, or holds anything else.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self._rows: dict[tuple[Any, ...], Row] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w+b" if fresh or not path.exists() else "r+b")
        except OSError as error:
            raise ResultsError(f"cannot write {path}: {error.strerror}; choose another --out") from error
        try:
            self._read()
        except ResultsError:
            self._file.close()
            raise

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._rows

    def rows(self, keys: Iterator[tuple[Any, ...]]) -> list[Row]:
        """The recorded rows of those keys, in their order."""
        return [self._rows[key] for key in keys if key in self._rows]

    def add(self, row: Row) -> None:
        """Write a row through to the file."""
        self._rows[key_of(row)] = row
        try:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise ResultsError(f"cannot write {self.path}: {error.strerror}; what it holds is kept") from error

    def __enter__(self) -> AnswerJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self) -> None:
        complete_bytes = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                self._rows[key_of(row)] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ResultsError(
                    f"line {number} of {self.path} is no answer of an evaluation; remove the file, or use --fresh"
                ) from error
            complete_bytes += len(line)
        self._file.truncate(complete_bytes)
        self._file.seek(complete_bytes)


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Value for clear_refs, by proc(5), that makes the peak begin at the present size."""


def reset_peak(device: torch.device) -> None:
    """Reset the peak if the system can: elsewhere it stays that of the process's whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)


def peak_bytes(device: torch.device) -> int:
    """The most since `reset_peak`: what torch has allocated on a CUDA device, or the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
