"""Which part of a file is read: `capture.start_s` and `capture.duration_s`, in media time of the file."""

from __future__ import annotations

from dataclasses import dataclass

from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceOver

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """From `start_ns` on, up to and without `end_ns`; None is the end of the file."""

    start_ns: int
    end_ns: int | None

    @classmethod
    def of(cls, config: CaptureConfig) -> Part:
        start_ns = round(config.start_s * NS_PER_S)
        return cls(start_ns, None if config.duration_s is None else start_ns + round(config.duration_s * NS_PER_S))

    def ended_by(self, media_ns: int) -> bool:
        """Whether a frame of that time lies behind the part."""
        return self.end_ns is not None and media_ns >= self.end_ns

    def empty(self, name: str, length_ns: int | None = None, instead: str = "") -> SourceOver:
        """The error of a file that has no frame in the part; `instead` is another reason that there may be."""
        start = f"capture.start_s = {self.start_ns / NS_PER_S:g}"
        if self.end_ns is not None and (length_ns is None or self.start_ns < length_ns) and not instead:
            return SourceOver(f"{name} has no frame in the {self._length_s:g} s from {start} on; give a longer time")
        length = "" if length_ns is None else f" (it has {length_ns / NS_PER_S:.2f} s)"
        return SourceOver(f"{name} ends before {start}{length}{instead}; give an earlier time")

    @property
    def _length_s(self) -> float:
        assert self.end_ns is not None
        return (self.end_ns - self.start_ns) / NS_PER_S


def refuse_part(config: CaptureConfig, name: str) -> None:
    """Raises ConfigError where a part is asked of what has no beginning and no end."""
    for key, value in (("start_s", config.start_s), ("duration_s", config.duration_s)):
        if value:
            instead = "leave it out" if key == "start_s" else "--for ends a run after a time"
            raise ConfigError(f"capture.{key} = {value:g} is for files, and {name} is live; {instead}")
