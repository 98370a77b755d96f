"""`GroupOfPictures`: what a model's visual memory was shown of a stream, and what the next packet appends to it.

A group is a key frame, which is an ordinary snapshot, and frames that hold only what is new since, and name the tokens
that do not show the picture any more: the model's memory drops those. Or it is a video's newest frames, each a
snapshot, of which an unchanged one appends nothing.

A packet of an answer appends what a new question wants, and what came into view where the group showed nothing. Once
something that it shows has changed, the next answer begins a new group: tokens that stay were computed beside what is
gone, and name it. With `patch` the group goes on, and shows anew what changed and what is near it. Between answers,
idle packets do this ahead of time, as soon as the picture rests, refine tiles that the group shows coarsely or not at
all, and in the end write it anew, so that all tokens are computed beside each other.

Each packet that appends tokens begins with a coarse overview of its frame, in place of the one before. The encoder
computes new tokens beside it alone, and the language model reads last what the whole picture shows now: without it,
answers name only what came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.tile_news import TileNews, is_other_picture
from arr_coc.errors import OptionError
from arr_coc.texture.regions import (
    REGION_AREAS,
    overview_regions,
    region_mean,
    region_pool,
    shape_grid,
    shape_pool,
    spread,
)
from arr_coc.texture.store.base import TextureView, gather_pixels
from arr_coc.types import GROUP_GROWTH, NS_PER_S, TILE_PX, FrameStamp, GroupPlace, TileVersions, TokenPacket

Regions = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
TokenState = Literal["new", "shown", "superseded"]
GroupReason = Literal[
    "", "first", "epoch", "failed", "lost", "age", "full", "superseded", "changed", "outdated", "rebuilt"
]
"""Why a group begins with a frame: there was none; a cut, a seek or another size; the frame is shown whole because its
allocation failed; the model holds another one; its age, its tokens, or those that were superseded exceed a limit; what
changed costs about as much as a key frame; something changed, and what stays was computed beside it; it was written
anew in idle time.
Empty if the group goes on."""

STALE = 125
NEWS = 126
NEVER = 127
"""In a map of areas: a tile that the group showed until it, or another one in its token, changed; and one that it has
not shown, which has changed since it began, or has not."""

OVERVIEW_TOKENS = 16
OVERVIEW_SHARE = 1 / 3
"""Most regions of the overview that comes with new tokens, and their largest share of a frame's budget."""

KEY_SHARE = 0.75
"""If news and overview take this share of a key frame's tokens, a key frame is shown: it costs little more, and its
tokens are computed beside each other."""

MOST_REBUILT = 2
"""Most tokens of a group that is written anew because something changed, as a multiple of a frame's budget: a larger
one would be out of date by the end. It begins with a key frame, and is refined again."""

NEAR_TILES = 2
"""Tiles this near to one that changed are patched with it: they have seen most of it."""

CHANGE_LEVEL = 2
"""Level of the texture whose texels are means of 4×4 pixels."""

_AREAS = REGION_AREAS.astype(np.int8)
"""Log2 of a region's area in tiles, by shape."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Limits of a group of pictures. Raises OptionError for values out of range.

    `tokens`: the most visual tokens that a group shows. `frames`: how many frames it shows, each whole and under its
    time; 1 for one picture that is kept up to date, of which alone the following is. `seconds`: media time after which
    a new one begins if tokens of it were superseded. `patch`: an answer goes on with a group of which something has
    changed, and appends that and what is near; it costs a fraction of a key frame, and may name what is gone.
    """

    tokens: int = 2048
    seconds: float = 60.0
    frames: int = 1
    patch: bool = False

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise OptionError(f"a group of pictures has at least 1 token, got {self.tokens}")
        if self.frames < 1:
            raise OptionError(f"a group of pictures shows at least 1 frame, got {self.frames}")
        if not self.seconds > 0:
            raise OptionError(f"a group of pictures lasts more than 0 seconds, got {self.seconds!r}")


@dataclass(frozen=True, slots=True, eq=False)
class GroupFrame:
    """A frame in its group, and the group up to it.

    `place` is None for a frame that alone exceeds the group's limit: its packet is complete in itself. `reason`:
    why the group begins with it. `regions` int32 [N, 3] are all tokens of the group, in the order in which they were
    appended, or those of the frames that it shows, the last `appended_tokens` with this frame; `relevance` float32
    [appended_tokens]. The `overview` tokens from `overview_begin` on are the newest overview. `lengths`: of several
    frames, the tokens of each. `shown_ns` int64 [N]: media time of the frame that each shows; `superseded` bool [N]:
    some tile of it has changed since, or smaller ones show all of it; `dropped` int32 [M]: which of them with this
    frame. Of all superseded tokens, `changed_tokens` showed what is no longer there. `is_complete`: an idle packet had
    nothing left to refine. The group began at `begun_ns`. `news`: what was learnt of the stream's light and unrest.
    `areas` int8 [gh, gw]: log2 of the area of the smallest token that shows each tile as it is, or STALE, NEWS or
    NEVER, of several frames always NEVER; by the tiles' `versions`, and by `picture` uint8 [8 gh, 8 gw, 3], level 2 of
    each tile as it was shown, or was when it was noted that it had changed.
    """

    stamp: FrameStamp
    place: GroupPlace | None
    reason: GroupReason
    regions: Regions
    relevance: npt.NDArray[np.float32]
    shown_ns: npt.NDArray[np.int64]
    superseded: Flags
    dropped: npt.NDArray[np.int32]
    overview: int
    begun_ns: int
    areas: npt.NDArray[np.int8]
    versions: TileVersions
    picture: npt.NDArray[np.uint8]
    news: TileNews
    overview_begin: int = 0
    lengths: tuple[int, ...] = ()
    changed_tokens: int = 0
    is_complete: bool = False

    @property
    def appended_tokens(self) -> int:
        """Number of tokens that this frame appends."""
        return len(self.relevance)

    @property
    def held_tokens(self) -> int:
        """Number of tokens that the group shows."""
        return len(self.regions) - self.superseded_tokens

    @property
    def superseded_tokens(self) -> int:
        """Number of tokens that were superseded since the group began."""
        return int(np.count_nonzero(self.superseded))

    @property
    def is_patched(self) -> bool:
        """True if tokens were appended to the key frame, or have left it."""
        is_later = self.place is not None and self.place.frame > 0
        return is_later and (len(self.regions) > self.lengths[0] or bool(self.superseded.any()))

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the next frame; this one's if it appends nothing, and None if there is no group."""
        if self.place is None:
            return None
        return replace(self.place, frame=self.place.frame + bool(self.appended_tokens or len(self.dropped)))

    @property
    def states(self) -> list[TokenState]:
        """State of each token."""
        older = self.superseded[: len(self.regions) - self.appended_tokens].tolist()
        states: list[TokenState] = ["superseded" if is_superseded else "shown" for is_superseded in older]
        return states + ["new"] * self.appended_tokens


class GroupOfPictures:
    """The group of one stream: what its packets have shown to the model; used by one thread.

    `packet` takes the newest frame in, as it is sent. The same frame once more, for another request, gives the same
    packet. `idle_packet` gives a packet that the model may read or not; the place that it reports later shows which.
    """

    def __init__(self, options: GroupOptions | None = None) -> None:
        self.options = options or GroupOptions()
        self._number = 0
        self._asks_anew = False
        self._newest: GroupFrame | None = None
        self._frame: FrameAllocation | None = None
        self._offered: GroupFrame | None = None
        self._rebuilt: GroupFrame | None = None
        self._newest_view: tuple[FrameStamp, TileVersions] | None = None
        self._earlier_versions: TileVersions | None = None
        self._last_look: tuple[GroupFrame, FrameStamp, tuple[Flags, TileNews]] | None = None

    def ask_anew(self) -> None:
        """Note another question: its tokens are appended with the next packet, even if nothing changed."""
        self._asks_anew = True

    def newest_of(self, frame: FrameAllocation | None) -> GroupFrame | None:
        """Return the newest frame of the group if it is this one."""
        return self._newest if frame is self._frame else None

    @property
    def newest(self) -> GroupFrame | None:
        """The newest frame whose packet the model has, as far as is known."""
        return self._newest

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the next frame, as the model reports it if it holds what it was sent, idle packets included."""
        if self._offered is not None:
            return self._offered.next_place
        if self._newest is None:
            return None
        return self._newest.next_place

    def packet(self, view: TextureView, frame: FrameAllocation, model_place: GroupPlace | None) -> TokenPacket:
        """Return what a frame, whose texture is `view`, appends to the group: a key frame if a new one begins.

        `model_place`: what the model holds, as the place of the next frame of its group. Raises as
        `FrameAllocation.allocation`.
        """
        self._settle(model_place)
        group_frame = self._next(view, frame, model_place)
        packet = self._packet_of(view, group_frame, frame)
        self._take(group_frame)
        self._frame = frame
        self._asks_anew = False
        return packet

    def preview(self, view: TextureView, frame: FrameAllocation) -> GroupFrame:
        """Return the group as it would be with the packet of a frame, if the model holds what it was sent."""
        return self._next(view, frame, None if self._newest is None else self._newest.next_place)

    def glance_packet(
        self, view: TextureView, frame: FrameAllocation, model_place: GroupPlace | None
    ) -> TokenPacket | None:
        """Return a packet of no regions, with which the model looks at the group as it stands; None if a new group
        begins with this frame."""
        self._settle(model_place)
        if self._newest is None or self._end_reason(view, frame, model_place):
            return None
        regions = np.zeros((0, 3), np.int32)
        pixels = np.zeros((0, 3, TILE_PX, TILE_PX), np.uint8)
        place = self._newest.next_place
        return TokenPacket(view.stamp, view.grid, regions, np.zeros(0, np.float32), pixels, place=place)

    def has_idle_work(self, view: TextureView) -> bool:
        """Return True if an idle packet of this view may append something: tiles changed, the picture is not complete,
        or tokens that stay were computed beside what is no longer there. Costs microseconds."""
        newest = self._newest
        if newest is None or newest.place is None or newest.place.frames > 1:
            return False
        if not newest.versions.is_comparable(view.versions):
            return False
        if newest.versions.stale(view.versions).any() or newest.news.has_doubts:
            return True
        return self._rebuilt is None and (not newest.is_complete or newest.is_patched)

    def idle_packet(
        self, view: TextureView, frame: FrameAllocation, model_place: GroupPlace | None, tokens: int
    ) -> TokenPacket | None:
        """Return a packet to read between two answers; None if there is nothing to do, or only the next answer can do
        it.

        If something changed and the picture rests since the frame of an earlier call, it is the key frame of a group
        that is written anew, and takes the place of this one once the model has read it. Otherwise it refines up to
        `tokens` tokens, the most relevant tiles first; once that is done, the group is written anew, so that all
        tokens are computed beside each other.

        Args:
            view: Texture of the frame.
            frame: The newest frame.
            model_place: As in `packet`.
            tokens: About as many as the model reads at once; most tokens of detail.

        Raises:
            ArrCocError: As `packet`.
        """
        self._settle(model_place)
        newest = self._newest
        if newest is None or newest.place is None or newest.place.frames > 1:
            return None
        reason = self._end_reason(view, frame, model_place)
        if reason not in ("", "age"):
            return None
        if self._newest_view is None or self._newest_view[0] != view.stamp:  # one frame alone shows no rest
            if self._newest_view is None:
                self._earlier_versions = None
            else:
                self._earlier_versions = self._newest_view[1]
            self._newest_view = view.stamp, view.versions
        look = self._earlier_versions
        budget_tokens = frame.inputs.plan.tokens
        pending = self._rebuilt
        if pending is not None and len(pending.regions) <= MOST_REBUILT * budget_tokens:
            return None  # it is read soon; what changed meanwhile comes then
        successor = self._delta_frame(newest, view, frame, only_news=True, refined_tokens=0 if pending else tokens)
        rests = isinstance(successor, GroupFrame) and successor.place == successor.next_place  # nothing is new
        is_outdated = isinstance(successor, GroupFrame) and (
            (successor.changed_tokens and (rests or not self.options.patch))
            or len(successor.regions) > GROUP_GROWTH * successor.held_tokens
        )
        if not isinstance(successor, GroupFrame) or is_outdated or reason:
            if look is None or not look.is_comparable(view.versions) or look.stale(view.versions).any():
                return None  # it still changes: the next answer would begin anew all the same
            if isinstance(successor, GroupFrame) and successor.held_tokens <= MOST_REBUILT * budget_tokens:
                successor = self._rebuilt_frame(successor, view, frame)
            else:
                successor = replace(self._key_frame(view, frame, "rebuilt", None), reason="rebuilt")
            self._rebuilt = successor
        elif rests and successor.is_complete and successor.is_patched and pending is None:
            self._rebuilt = successor = self._rebuilt_frame(successor, view, frame)
        elif rests:
            self._newest = successor
            return None
        else:
            self._offered = successor
        self._number = max(self._number, self._number_of(successor))
        return self._packet_of(view, successor, frame)

    def on_idle_end(self, model_place: GroupPlace | None, *, rebuilt: bool = False) -> None:
        """Note that the model has read the offered frame, or that of a group written anew, or will not; `model_place`
        shows which."""
        self._settle(model_place)
        if rebuilt:
            self._rebuilt = None
        else:
            self._offered = None

    def _settle(self, model_place: GroupPlace | None) -> None:
        """Take an idle packet's frame as the newest if the model has read it."""
        for idle_frame in (self._rebuilt, self._offered):
            if idle_frame is not None and model_place == idle_frame.next_place:
                self._take(idle_frame)
                return
        if self._newest is None or model_place != self._newest.next_place:
            self._offered = self._rebuilt = None

    def _take(self, newest: GroupFrame) -> None:
        """Make a frame the newest. It takes the place of an offered one; a new group, that of one written anew."""
        if newest is self._newest:  # shown once more
            return
        self._newest = newest
        self._offered = self._frame = self._last_look = None
        if newest.reason:
            self._rebuilt = None
        self._number = max(self._number, self._number_of(newest))

    @staticmethod
    def _number_of(group_frame: GroupFrame) -> int:
        if group_frame.place is None:
            return 0
        return group_frame.place.group

    def _packet_of(self, view: TextureView, group_frame: GroupFrame, frame: FrameAllocation) -> TokenPacket:
        """Return the packet of a group's frame. The overview of a key frame is encoded apart from the rest of it, as a
        glance at it was; in a later frame, and one that was written anew, all are encoded together."""
        count = group_frame.appended_tokens
        place = group_frame.place
        regions = group_frame.regions[len(group_frame.regions) - count :]
        is_snapshot = place is None or not place.frame or place.frames > 1
        is_apart = is_snapshot and group_frame.reason != "rebuilt"
        return TokenPacket(
            stamp=view.stamp,
            grid=view.grid,
            regions=regions,
            relevance=group_frame.relevance,
            pixels=gather_pixels(view, regions) if count else np.zeros((0, 3, TILE_PX, TILE_PX), np.uint8),
            overview=frame.allocation.overview if count and is_apart else 0,
            place=place,
            superseded=group_frame.dropped,
        )

    def _next(self, view: TextureView, frame: FrameAllocation, model_place: GroupPlace | None) -> GroupFrame:
        newest = self._newest
        repeated = newest is not None and frame is self._frame and newest.versions.is_comparable(view.versions)
        if newest is not None and repeated and model_place in (newest.place, newest.next_place):
            return newest
        reason = self._end_reason(view, frame, model_place)
        if newest is not None and not reason:
            if newest.place is not None and newest.place.frames > 1:
                successor = self._window_frame(newest, view, frame, newest.place.frames)
            else:
                successor = self._delta_frame(newest, view, frame, only_news=not self._asks_anew)
            if not isinstance(successor, GroupFrame):
                reason = successor
            elif len(successor.regions) > GROUP_GROWTH * successor.held_tokens:
                reason = "superseded"
            else:
                return successor
        return self._key_frame(view, frame, reason, model_place)

    def _end_reason(self, view: TextureView, frame: FrameAllocation, model_place: GroupPlace | None) -> GroupReason:
        """Return why the group cannot go on with a frame, whatever that appends; empty if it can."""
        newest = self._newest
        if newest is None or newest.place is None:
            return "first"
        if not newest.versions.is_comparable(view.versions) or view.stamp.media_ns < newest.stamp.media_ns:
            return "epoch"
        if frame.maps is None:
            return "failed"
        if model_place != newest.next_place:
            return "lost"
        aged = view.stamp.media_ns - newest.begun_ns > self.options.seconds * NS_PER_S
        if aged and newest.changed_tokens and newest.place.frames == 1:
            return "age"
        return ""

    def _look(self, newest: GroupFrame, view: TextureView) -> tuple[Flags, TileNews]:
        """Return which tiles are news since the newest frame, and the state after this look, computed once a frame."""
        last = self._last_look
        if last is None or last[0] is not newest or last[1] != view.stamp:
            stale = newest.versions.stale(view.versions)
            last = self._last_look = (
                newest,
                view.stamp,
                newest.news.look(newest.picture, view.read(CHANGE_LEVEL), stale),
            )
        return last[2]

    def _key_frame(
        self, view: TextureView, frame: FrameAllocation, reason: GroupReason, model_place: GroupPlace | None
    ) -> GroupFrame:
        allocation = frame.allocation
        shape = view.grid.shape
        regions = allocation.regions.numpy().astype(np.int32)
        areas = np.full(shape, NEVER, np.int8)
        number = max(self._number, 0 if model_place is None else model_place.group) + 1
        fits = len(regions) <= self.options.tokens
        frames = max(1, min(self.options.frames, self.options.tokens // max(1, len(regions))))
        if frames == 1:
            _show(regions[allocation.overview :], areas)
        picture = view.read(CHANGE_LEVEL)
        news = None
        newest = self._newest
        if newest is not None and newest.versions.is_comparable(view.versions):
            tiles = newest.versions.stale(view.versions)
            if not is_other_picture(newest.picture, picture, tiles, KEY_SHARE):  # its unrest is that of this stream
                _, news = self._look(newest, view)
                news = news.showing(np.ones(shape, bool))
        return GroupFrame(
            stamp=view.stamp,
            place=GroupPlace(number, 0, frames) if fits else None,
            reason=reason if fits else "",
            regions=regions,
            relevance=allocation.relevance.numpy().copy(),
            shown_ns=np.full(len(regions), view.stamp.media_ns, np.int64),
            superseded=np.zeros(len(regions), bool),
            dropped=np.zeros(0, np.int32),
            overview=allocation.overview,
            begun_ns=view.stamp.media_ns,
            areas=areas,
            versions=view.versions,
            picture=picture.copy(),
            news=TileNews.of(picture) if news is None else news,
            lengths=(len(regions),),
        )

    def _window_frame(
        self, newest: GroupFrame, view: TextureView, frame: FrameAllocation, frames: int
    ) -> GroupFrame | GroupReason:
        """Return the newest `frames` frames at most, with another one, or as they are if nothing changed and the
        question is the same; the reason of a new group if they exceed the limit."""
        allocation = frame.allocation
        changed, news = self._look(newest, view)
        if not self._asks_anew and not changed.any():
            return replace(
                newest,
                stamp=view.stamp,
                place=newest.next_place,
                reason="",
                relevance=np.zeros(0, np.float32),
                versions=view.versions,
                news=news,
            )
        lengths = newest.lengths[-(frames - 1) :]
        first = len(newest.regions) - sum(lengths)
        regions = allocation.regions.numpy().astype(np.int32)
        now = self._key_frame(view, frame, "", None)
        all_regions = np.concatenate([newest.regions[first:], regions])
        if len(all_regions) > self.options.tokens:
            return "full"
        return replace(
            now,
            place=newest.next_place,
            regions=all_regions,
            shown_ns=np.concatenate([newest.shown_ns[first:], now.shown_ns]),
            superseded=np.zeros(len(all_regions), bool),
            overview=0,  # each frame may have its own, among the others
            begun_ns=newest.begun_ns,
            lengths=(*lengths, len(regions)),
        )

    def _delta_frame(
        self,
        newest: GroupFrame,
        view: TextureView,
        frame: FrameAllocation,
        *,
        only_news: bool,
        refined_tokens: int | None = None,
    ) -> GroupFrame | GroupReason:
        """Return the group with a frame that goes on with it, or the reason why a new one begins.

        It appends the chosen regions that do not show what the group shows as it is, and then tiles that the group
        shows as they were. With `only_news`, a chosen region shows some tile that has changed. With `refined_tokens`,
        the rest of so many shows tiles that the group does not show at level 0. If anything is appended, the overview
        comes before it.
        """
        allocation = frame.allocation
        superseded = newest.superseded
        areas = newest.areas.copy()
        picture = view.read(CHANGE_LEVEL)
        stale = newest.versions.stale(view.versions)
        if is_other_picture(newest.picture, picture, stale, KEY_SHARE):
            return "changed"
        old_overview = np.zeros(len(superseded), bool)
        old_overview[newest.overview_begin : newest.overview_begin + newest.overview] = True
        changed, news = self._look(newest, view)
        if changed.any():
            if self.options.patch:
                renewed = _and_near(changed)
            else:
                renewed = changed
            superseded = superseded | region_pool(newest.regions, renewed, np.logical_or)
            areas[changed & (areas == NEVER)] = NEWS
        changed_tokens = int(np.count_nonzero(superseded & ~newest.superseded))
        if refined_tokens is None and not self.options.patch and newest.changed_tokens + changed_tokens:
            return "outdated"
        if changed_tokens:  # the rest of what a coarse token showed is not shown any more
            areas[areas < STALE] = STALE
            _show(newest.regions[~(superseded | old_overview)], areas)
        before = areas.copy()
        relevance = frame.relevance.cpu().numpy()
        choice = allocation.regions.numpy()[allocation.overview :].astype(np.int32)
        scores = allocation.relevance.numpy()[allocation.overview :]
        if only_news:
            new = region_pool(choice, (areas == STALE) | (areas == NEWS), np.logical_or)
            choice = choice[new]
            scores = scores[new]
        is_addition = _show(choice, areas)
        within = frame.inputs.within
        if within is None:
            shows = np.ones_like(changed)
        else:
            shows = within.numpy()
        stale_tiles = shows & (areas == STALE)
        parts = [choice[is_addition], _most_relevant(stale_tiles, relevance, int(np.count_nonzero(stale_tiles)))]
        needed_tokens = sum(map(len, parts))
        overview = _overview_regions(frame)
        affordable_tokens = (KEY_SHARE if only_news else 1) * frame.inputs.plan.tokens
        if needed_tokens and needed_tokens + len(overview) > affordable_tokens:
            return "changed"
        room = self.options.tokens - int(np.count_nonzero(~(superseded | old_overview))) - needed_tokens - len(overview)
        if room < 0 and (needed_tokens or changed_tokens):
            return "full"
        is_complete = newest.is_complete and not (changed_tokens or needed_tokens)
        if refined_tokens is not None:
            blurred = shows & (areas > 0) & (areas == before) & ~stale_tiles
            parts.append(_most_relevant(blurred, relevance, min(refined_tokens - needed_tokens, room)))
        tiles = np.concatenate(parts[1:])
        areas[tiles[:, 1], tiles[:, 2]] = 0
        superseded = superseded | (_is_covered(newest.regions, areas) & ~old_overview)
        regions = np.concatenate([parts[0], tiles])
        values = np.concatenate([scores[is_addition], relevance[tiles[:, 1], tiles[:, 2]]])
        if len(regions) or (superseded & ~newest.superseded).any():
            superseded = superseded | old_overview
            regions = np.concatenate([overview, regions])
            values = np.concatenate([region_mean(overview, relevance), values]).astype(np.float32)
        if refined_tokens is not None:  # covered tokens have made room
            held_tokens = int(np.count_nonzero(~(superseded | old_overview))) + sum(map(len, parts)) + len(overview)
            is_complete = not (shows & (areas > 0)).any() or held_tokens >= self.options.tokens
        has_overview = len(regions) > 0
        return GroupFrame(
            stamp=view.stamp,
            place=newest.next_place,
            reason="",
            regions=np.concatenate([newest.regions, regions]),
            relevance=values,
            shown_ns=np.concatenate([newest.shown_ns, np.full(len(regions), view.stamp.media_ns, np.int64)]),
            superseded=np.concatenate([superseded, np.zeros(len(regions), bool)]),
            dropped=np.flatnonzero(superseded & ~newest.superseded).astype(np.int32),
            overview=len(overview) if has_overview else newest.overview,
            overview_begin=len(newest.regions) if has_overview else newest.overview_begin,
            begun_ns=newest.begun_ns,
            areas=areas,
            versions=view.versions,
            picture=_with_tiles(newest.picture, picture, changed | (areas != before)),
            news=news.showing(changed | (areas != before)),
            lengths=newest.lengths,
            changed_tokens=newest.changed_tokens + changed_tokens,
            is_complete=is_complete,
        )

    def _rebuilt_frame(self, group_frame: GroupFrame, view: TextureView, frame: FrameAllocation) -> GroupFrame:
        """Return a key frame that shows what the group shows, read anew from the view, without an overview if it is
        complete; what changed lately last, so that few tokens follow the next ones that are superseded."""
        is_fresh = ~group_frame.superseded
        is_fresh[group_frame.overview_begin : group_frame.overview_begin + group_frame.overview] = False
        fresh = np.flatnonzero(is_fresh)
        regions = group_frame.regions[fresh[np.argsort(group_frame.shown_ns[fresh], kind="stable")]]
        overview = _overview_regions(frame)[: 0 if group_frame.is_complete else None]
        regions = np.concatenate([overview, regions])
        return replace(
            group_frame,
            place=GroupPlace(self._number + 1, 0),
            reason="rebuilt",
            regions=regions,
            relevance=region_mean(regions, frame.relevance.cpu().numpy()).astype(np.float32),
            shown_ns=np.full(len(regions), view.stamp.media_ns, np.int64),
            superseded=np.zeros(len(regions), bool),
            dropped=np.zeros(0, np.int32),
            overview=len(overview),
            overview_begin=0,
            begun_ns=view.stamp.media_ns,
            picture=view.read(CHANGE_LEVEL).copy(),
            news=group_frame.news.showing(np.ones(view.grid.shape, bool)),
            lengths=(len(regions),),
            changed_tokens=0,
        )


def _and_near(tiles: Flags) -> Flags:
    """Return tiles bool [gh, gw] and those near them."""
    side = 2 * NEAR_TILES + 1
    patch: Flags = cv2.dilate(tiles.astype(np.uint8), np.ones((side, side), np.uint8)).astype(bool)
    return patch


def _overview_regions(frame: FrameAllocation) -> Regions:
    """Return the regions of the overview that comes with a frame's new tokens; none if all are too many."""
    most = min(OVERVIEW_TOKENS, int(OVERVIEW_SHARE * frame.inputs.plan.tokens))
    regions = overview_regions((frame.relevance.shape[0], frame.relevance.shape[1]), most)
    if frame.inputs.within is not None:  # a zone's question is not about what lies beyond it
        regions = regions[region_pool(regions, frame.inputs.within.numpy(), np.logical_or)]
    return regions.astype(np.int32)


def _by_tile(picture: npt.NDArray[np.uint8], shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return level 2 of a picture tile by tile: uint8 [gh, 8, gw, 24], a view of it if it is contiguous."""
    side = TILE_PX >> CHANGE_LEVEL
    return picture.reshape(shape[0], side, shape[1], side * 3)


def _with_tiles(picture: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8], tiles: Flags) -> npt.NDArray[np.uint8]:
    """Return a picture with these tiles of another one, both level 2."""
    shape, (rows, cols) = (tiles.shape[0], tiles.shape[1]), np.nonzero(tiles)
    if not len(rows):
        return picture
    replaced = picture.copy()
    _by_tile(replaced, shape)[rows, :, cols] = _by_tile(other, shape)[rows, :, cols]
    return replaced


def _show(regions: Regions, areas: npt.NDArray[np.int8]) -> Flags:
    """Show regions [K, 3], the smallest first, and return which of them show a tile that none as small showed: bool
    [K]. `areas` [gh, gw] are brought up to date."""
    shape = (areas.shape[0], areas.shape[1])
    codes = regions[:, 0]
    is_addition = np.zeros(len(regions), bool)
    for code in sorted(np.unique(codes).tolist(), key=lambda code: int(_AREAS[code])):
        indices = np.flatnonzero(codes == code)
        rows = regions[indices, 1]
        cols = regions[indices, 2]
        new = shape_pool(areas, code, np.maximum)[rows, cols] > _AREAS[code]
        is_addition[indices] = new
        shape_areas: npt.NDArray[Any] = np.full(shape_grid(shape, code), NEVER, np.int8)
        shape_areas[rows[new], cols[new]] = _AREAS[code]
        np.minimum(areas, spread(shape_areas, code, shape), out=areas)
    return is_addition


def _is_covered(regions: Regions, areas: npt.NDArray[np.int8]) -> Flags:
    """Return which regions [K, 3] show only tiles that smaller ones show: bool [K]."""
    codes = regions[:, 0]
    mask = np.zeros(len(regions), bool)
    for code in np.unique(codes[_AREAS[codes] > 0]).tolist():
        indices = np.flatnonzero(codes == code)
        mask[indices] = shape_pool(areas, code, np.maximum)[regions[indices, 1], regions[indices, 2]] < _AREAS[code]
    return mask


def _most_relevant(candidates: Flags, relevance: npt.NDArray[np.float32], count: int) -> Regions:
    """Return up to `count` of the candidate tiles [gh, gw] at level 0, the most relevant first: int32 [n, 3]."""
    if count > 0:
        tiles = np.flatnonzero(candidates)
    else:
        tiles = np.zeros(0, np.int64)
    tiles = tiles[np.argsort(-relevance.ravel()[tiles], kind="stable")[: max(count, 0)]]
    rows, cols = np.divmod(tiles, candidates.shape[1])
    return np.stack([np.zeros_like(rows), rows, cols], axis=1).astype(np.int32)
