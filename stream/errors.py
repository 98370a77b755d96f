"""Exception tree of the pipeline. Each error is also the builtin that fits it.

StreamError
├── ConfigError (ValueError)       an unknown key, a value out of range, a file that is not TOML
│   ├── ResumeError                a run that cannot be continued as it was asked for
│   ├── RecordingError             a recording that cannot be replayed
│   └── PastError                  a file of remembered moments that cannot be used, or a search in it
├── SourceError (OSError)          a source that cannot be opened or read
│   └── SourceNotFound (FileNotFoundError)
├── OutputError (OSError)          an output that cannot be written, or has an unknown suffix
│   ├── OutputFailed               an output that could be written and cannot any more: the disk is full
│   └── ReaderGone (BrokenPipeError)  the reader of stdout has gone
├── TransportError (ConnectionError)  a message that cannot be decoded, a peer that is gone
│   └── ConnectionRefused (ConnectionRefusedError)  a peer that cannot be reached, or does not accept this end's key
├── AnswerLost (RuntimeError)      one answer that could not be had; the next one may be
└── StageDied (RuntimeError)       a stage that ended before its time; names it
"""

from __future__ import annotations

from typing import ClassVar


class StreamError(Exception):
    """Base of every error that `stream` raises on purpose; its message is fit to show to a user.

    The message is `problem`, and after a semicolon `remedy`: what to do, None if it is not given separately.
    """

    user_fixable: ClassVar[bool] = False
    """True for errors that the user can fix: reported as they are. Others mean that a stage died."""

    def __init__(self, problem: str = "", remedy: str | None = None) -> None:
        super().__init__(problem if remedy is None else f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigError(StreamError, ValueError):
    """An unknown key, a value out of range, or a file that is not TOML."""

    user_fixable = True


class ResumeError(ConfigError):
    """A run that cannot be continued as it was asked for."""


class NothingToContinue(ResumeError):
    """The earlier run has finished: its outputs are there, and no journal."""


class RecordingError(ConfigError):
    """A file that is no recording, is damaged, or cannot be replayed by this program or with this model."""


class PastError(ConfigError):
    """A file of remembered moments that cannot be written or read, or a search in it that cannot be made."""


class SourceError(StreamError, OSError):
    """A source that cannot be opened or read."""

    user_fixable = True


class SourceOver(SourceError):
    """A source that ends before the time at which reading it was to begin."""


class OpeningCancelled(SourceError):
    """A source that was given up before it was open, because the run is to end."""


class SourceNotFound(SourceError, FileNotFoundError):
    """A file that does not exist."""


class OutputError(StreamError, OSError):
    """An output that cannot be written, or whose suffix is no known format."""

    user_fixable = True


class OutputFailed(OutputError):
    """An output that could be written and cannot any more: the run fails on the way."""


class ReaderGone(OutputError, BrokenPipeError):
    """The reader of stdout has gone: nothing failed, and no user is there to read a report."""


class TransportError(StreamError, ConnectionError):
    """A message that cannot be decoded, or a peer that is gone."""


class ConnectionRefused(TransportError, ConnectionRefusedError):
    """A peer that cannot be reached, or does not accept this end's key; the user can fix that."""

    user_fixable = True


class NoSocketFolder(TransportError):
    """The system's temporary directory takes no sockets; TMPDIR names another."""

    user_fixable = True


class AnswerLost(StreamError, RuntimeError):
    """One answer that a model could not give, such as for a network that failed; the next one may come.

    `wait_s`: how long nothing should be asked, in seconds.
    """

    def __init__(self, problem: str = "", *, wait_s: float = 0.0) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


class StageDied(StreamError, RuntimeError):
    """A stage that ended before its time."""

    def __init__(self, stage: str, cause: str) -> None:
        super().__init__(f"the {stage} stage died: {cause}")
        self.stage = stage
        self.cause = cause
