"""Captions cut into the segments of a video: one WebVTT file per segment. Pure.

WebVTT in HLS: RFC 8216, section 3.5. Times in a file are presentation times of the video's track.
"""

from __future__ import annotations

import math
from collections import deque

from stream.extensions.hls.playlists import PlaylistSegment
from stream.sinks.captions import Cue, CueTrack, caption_text, timestamp, webvtt_text


class SegmentedCaptions:
    """Cues of a run, released segment by segment.

    A cue that crosses an edge is cut there and continues in the next segment. `late` counts the cues that arrived after
    the segment in which they begin was released; they begin with the next one. `latest_s` is the longest delay of such
    a cue after its frame, in seconds of media time.
    """

    def __init__(self) -> None:
        self._track = CueTrack()
        self._cues: deque[Cue] = deque()
        self._given_ms = -math.inf
        self.count = self.late = 0
        self.latest_s = 0.0

    def answer(self, at_s: float, text: str, now_s: float) -> None:
        """Show an answer about the frame at `at_s` from that time on; `now_s` is the time of the newest frame."""
        before = self._track.open
        cue = self._track.answer(at_s, caption_text(text))
        if cue is not None:
            self._cues.append(cue)
        newest = self._track.open
        if newest is None or newest is before:
            return
        self.count += 1
        if newest.start_ms < self._given_ms:
            self.late += 1
            self.latest_s = max(self.latest_s, now_s - at_s)

    def cut(self, segment: PlaylistSegment) -> str:
        """Return the WebVTT file of a segment. Segments are cut in order."""
        start_ms = round(segment.start_s * 1000)
        end_ms = round(segment.end_s * 1000)
        shift_ms = round(segment.track_s * 1000) - start_ms
        while self._cues and self._cues[0].end_ms <= start_ms:
            self._cues.popleft()
        cues = [(cue.start_ms, cue.end_ms, cue.text) for cue in self._cues]
        if (last := self._track.open) is not None:
            cues.append((last.start_ms, end_ms, last.text))
        self._given_ms = end_ms
        # times of the file are those of the track
        lines = ["WEBVTT", "X-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0", ""]
        for begins_ms, ends_ms, text in cues:
            begins_ms = max(begins_ms, start_ms)
            ends_ms = min(ends_ms, end_ms)
            if begins_ms < ends_ms:
                begins = timestamp(begins_ms + shift_ms, ".")
                ends = timestamp(ends_ms + shift_ms, ".")
                lines += [f"{begins} --> {ends}", webvtt_text(text), ""]
        return "\n".join(lines) + "\n"
