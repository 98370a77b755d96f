"""Video of one match, or of several close to each other, while it is written."""

from __future__ import annotations

from stream.events import Match, VideoFragment
from stream.extensions.clips.folder import ClipFile
from stream.extensions.clips.ring import continues
from stream.recording.mp4_boxes import begin_ticks, earlier


class ClipVideo:
    """Video in `file` that ends at media time `until_s`: the fragments of one track, from a key frame on.

    `matches` are those that it shows, each with the name of its picture. Its times begin at 0.
    """

    longest_s = 120.0
    """Length beyond which no match extends a video."""

    def __init__(self, file: ClipFile, until_s: float) -> None:
        self.file = file
        self.until_s = until_s
        self.start_s = self.end_s = until_s
        self.matches: list[tuple[Match, str | None]] = []
        self._last: VideoFragment | None = None
        self._ticks = 0

    def extend(self, match: Match, picture: str | None, after_s: float) -> bool:
        """Show another match, too, if it is in the video and that does not become too long; return whether it does."""
        if self._last is not None:
            start_s = self.start_s
        else:
            start_s = self.matches[0][0].pts_s
        if not start_s <= match.pts_s <= self.until_s or match.pts_s + after_s - start_s > self.longest_s:
            return False
        self.until_s = max(self.until_s, match.pts_s + after_s)
        self.matches.append((match, picture))
        return True

    def add(self, fragment: VideoFragment) -> bool:
        """Write the next fragment; return whether the video goes on after it. Raises OSError, and ends before it."""
        if self._last is None:
            if not fragment.key:
                return True
            self._ticks = begin_ticks(fragment.data)
            self.file.append(fragment.init + earlier(fragment.data, self._ticks))
            self.start_s = fragment.start_s
        elif continues(fragment, self._last):
            self.file.append(earlier(fragment.data, self._ticks))
        else:
            return False
        self._last = fragment
        self.end_s = fragment.end_s
        return self.end_s < self.until_s
