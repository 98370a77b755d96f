"""Ring of the newest video in memory, by groups that begin with a key frame."""

from __future__ import annotations

from collections import deque
from itertools import chain

from stream.events import VideoFragment

GAP_S = 0.1
"""Greatest gap between two fragments of one track: their times are rounded."""


def continues(fragment: VideoFragment, before: VideoFragment) -> bool:
    """Return True if a fragment continues the track of another one, so that they play as one video."""
    gap_s = fragment.track_s - before.track_s - before.duration_s
    return fragment.init == before.init and abs(gap_s) < GAP_S


class FragmentRing:
    """The newest fragments: at least `keep_s` seconds of media time, but at most `max_bytes`.

    Whole groups leave it, because a video can only begin with a key frame. A group that alone is larger leaves it, too.
    """

    def __init__(self, keep_s: float, max_bytes: int) -> None:
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._groups: deque[list[VideoFragment]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._groups)

    def add(self, fragment: VideoFragment) -> None:
        """Add the next fragment; one that cannot be decoded, as its key frame is missing, is dropped."""
        if fragment.key:
            self._groups.append([])
        elif not self._groups or not continues(fragment, self._groups[-1][-1]):
            return
        self._groups[-1].append(fragment)
        self.size_bytes += len(fragment.data)
        while self.size_bytes > self._max_bytes or (
            len(self._groups) > 1 and fragment.end_s - self._groups[1][0].start_s >= self._keep_s
        ):
            self.size_bytes -= sum(len(member.data) for member in self._groups.popleft())

    def around(self, at_s: float, before_s: float, after_s: float) -> list[VideoFragment]:
        """Return the fragments around a media time, of the one track that shows it.

        They begin with the last key frame that is `before_s` or more before it, or with the first one there is, and end
        with the first fragment that reaches `after_s` after it, or with the newest one.
        """
        track: list[list[VideoFragment]] = []
        for group in self._groups:
            if track and (not continues(group[0], track[-1][-1])):
                if group[0].start_s > at_s:
                    break
                track = []
            track.append(group)
        begin = max((at for at, group in enumerate(track) if group[0].start_s <= at_s - before_s), default=0)
        return [fragment for fragment in chain(*track[begin:]) if fragment.start_s < at_s + after_s]
