"""Section `[hls]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stream.config import ExtensionSection


class HlsSection(ExtensionSection):
    """HTTP live streaming: what a caption output `.m3u8` holds (docs/streaming.md)."""

    section: ClassVar[str] = "hls"

    segment_s: float = Field(default=2.0, ge=0.5, le=30)
    """Least length of a segment, in seconds; it ends before the source's next key frame."""
    hold_s: float = Field(default=3.0, ge=0, le=60)
    """Time for which a segment waits for answers about its frames, in seconds."""
    keep_s: Literal["auto", "all"] | Annotated[float, Field(gt=0)] = "auto"
    """Length of the video that players can go back to, in seconds; `auto`: 60 for a live source, all of a file. Older
    segments are deleted."""
