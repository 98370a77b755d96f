"""Playlists of HTTP live streaming (RFC 8216): the master, and one for each of video and captions. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 7
"""Lowest protocol version with fragmented MP4 outside of I-frame playlists."""

VIDEO_SUFFIX = ".m4s"
CAPTIONS_SUFFIX = ".vtt"

BANDWIDTH_UNKNOWN = 1_000_000
"""Bandwidth in bits per second before any was measured; the tag is required."""


@dataclass(frozen=True, slots=True)
class PlaylistSegment:
    """Segment of a playlist; video and captions share its number.

    `header` names the initialization section; a segment whose header differs from the previous one begins a new
    timeline, a discontinuity. Times are in seconds: `start_s` media time, `track_s` presentation time in the track.
    """

    number: int
    header: str
    start_s: float
    duration_s: float
    track_s: float
    size_bytes: int

    @property
    def end_s(self) -> float:
        """Media time of its end."""
        return self.start_s + self.duration_s

    @property
    def name(self) -> str:
        """Name of its files, without suffix."""
        return f"segment-{self.number:05}"


@dataclass(frozen=True, slots=True)
class PlaylistState:
    """State that both playlists share.

    `discontinuities`: their number before the first of `segments`. `longest_s`: the longest segment so far.
    `growing`: segments are never removed. `ended`: no segment will follow.
    """

    segments: Sequence[PlaylistSegment]
    discontinuities: int
    longest_s: float
    growing: bool
    ended: bool


def media_playlist(state: PlaylistState, suffix: str) -> str:
    """Return the playlist of the video (`VIDEO_SUFFIX`) or of the captions (`CAPTIONS_SUFFIX`)."""
    first = state.segments[0].number if state.segments else 0
    lines = [
        "#EXTM3U",
        f"#EXT-X-VERSION:{VERSION}",
        f"#EXT-X-TARGETDURATION:{max(1, math.floor(state.longest_s + 0.5))}",
        f"#EXT-X-MEDIA-SEQUENCE:{first}",
        f"#EXT-X-DISCONTINUITY-SEQUENCE:{state.discontinuities}",
        *(["#EXT-X-PLAYLIST-TYPE:EVENT"] if state.growing else []),
    ]
    header = None
    for segment in state.segments:
        if segment.header != header:
            lines += ["#EXT-X-DISCONTINUITY"] if header is not None else []
            lines += [f'#EXT-X-MAP:URI="{segment.header}"'] if suffix == VIDEO_SUFFIX else []
            header = segment.header
        lines += [f"#EXTINF:{segment.duration_s:.6f},", segment.name + suffix]
    lines += ["#EXT-X-ENDLIST"] if state.ended else []
    return "\n".join(lines) + "\n"


def master_playlist(
    video: str, captions: str, codec: str, size_px: tuple[int, int], segments: Sequence[PlaylistSegment]
) -> str:
    """Return the master playlist of one video and its captions.

    Args:
        video: Name of the media playlist of the video.
        captions: Name of the media playlist of the captions.
        codec: RFC 6381 name of the codec; empty if unknown.
        size_px: Width and height of the video; zeros if unknown.
        segments: Segments over which the bandwidth is measured.
    """
    rates = [8 * segment.size_bytes / segment.duration_s for segment in segments]
    spans_s = sum(segment.duration_s for segment in segments)
    peak = math.ceil(max(rates, default=BANDWIDTH_UNKNOWN))
    if spans_s:
        mean = math.ceil(8 * sum(segment.size_bytes for segment in segments) / spans_s)
    else:
        mean = BANDWIDTH_UNKNOWN
    attributes = [
        f"BANDWIDTH={peak}",
        f"AVERAGE-BANDWIDTH={mean}",
        *([f'CODECS="{codec}"'] if codec else []),
        *([f"RESOLUTION={size_px[0]}x{size_px[1]}"] if all(size_px) else []),
        'SUBTITLES="captions"',
    ]
    group = 'TYPE=SUBTITLES,GROUP-ID="captions",NAME="Answers",DEFAULT=YES,AUTOSELECT=YES,FORCED=NO'
    return "\n".join(
        [
            "#EXTM3U",
            f"#EXT-X-VERSION:{VERSION}",
            f'#EXT-X-MEDIA:{group},URI="{captions}"',
            f"#EXT-X-STREAM-INF:{','.join(attributes)}",
            video,
            "",
        ]
    )
