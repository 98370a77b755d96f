"""Groups of pictures: what is appended, when a new one begins, what idle time adds, and what never happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.allocation import group as groups
from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.group import (
    KEY_SHARE,
    NEVER,
    NEWS,
    OVERVIEW_TOKENS,
    STALE,
    GroupFrame,
    GroupOfPictures,
    GroupOptions,
)
from arr_coc.allocation.packets import all_tokens, explain, packet_from
from arr_coc.allocation.tile_news import LASTING_LOOKS
from arr_coc.allocation.zones import ZoneOptions
from arr_coc.errors import OptionError
from arr_coc.texture.regions import overview_regions, tile_boxes
from arr_coc.texture.store.base import TextureView
from arr_coc.types import GROUP_GROWTH, NS_PER_S, Feedback, GroupPlace, QueryEmbedding, TokenPacket
from tests.support.groups import nothing_near
from tests.support.video import FRAME_NS, PictureStream, scenery

ROWS, COLS = 5, 7
ALL_TILES = tuple(np.ndindex(ROWS, COLS))
LEFT = ((0.0, 0.0), (0.4, 0.0), (0.4, 1.0), (0.0, 1.0))
"""A zone of the three columns at the left."""

Content = npt.NDArray[np.int64]
"""What each tile shows, by a number: [rows, cols]."""


@pytest.fixture(autouse=True, scope="module")
def _nothing_near() -> Iterator[None]:
    with nothing_near():
        yield


@dataclass(frozen=True)
class Token:
    """A token of a model: its region, and what its tiles showed when it was read."""

    region: tuple[int, ...]
    tiles: tuple[slice, slice]
    content: Content
    shown_ns: int
    is_overview: bool

    @property
    def area(self) -> int:
        return area_of(self.region)

    def shows(self, content: Content) -> bool:
        return bool((self.content[self.tiles] == content[self.tiles]).all())

    def is_near_change(self, content: Content) -> bool:
        area = tuple(
            slice(max(0, side.start - groups.NEAR_TILES), side.stop + groups.NEAR_TILES) for side in self.tiles
        )
        return bool((self.content[area] != content[area]).any())


class Model:
    """Store of the packets of a client's group, as in an answer server."""

    def __init__(self) -> None:
        self.packets: list[TokenPacket] = []
        self.contents: list[Content] = []
        self.overviews: list[int] = []

    @property
    def next_place(self) -> GroupPlace | None:
        place = self.packets[0].place if self.packets else None
        return None if place is None else replace(place, frame=len(self.packets))

    def take(self, packet: TokenPacket, content: Content, overview: int) -> None:
        """Read a packet, of which the first `overview` tokens are an overview."""
        place = packet.place
        assert place is not None
        newest = self.packets[-1] if self.packets else None
        if newest is not None and place == newest.place:
            assert same_packet(newest, packet)
            return
        if place.frame == 0:
            self.forget()
        next_place = self.next_place
        assert next_place is None or place == next_place
        assert place.frame == len(self.packets)
        if not packet.is_empty:
            self.packets.append(packet)
            self.contents.append(content)
            self.overviews.append(overview)

    def forget(self, frames: int | None = None) -> None:
        """Drop the newest frames, or all."""
        count = 0 if frames is None else len(self.packets) - frames
        del self.packets[count:], self.contents[count:], self.overviews[count:]

    def tokens(self) -> list[Token]:
        """The tokens that were not superseded."""
        return self._replay()[0]

    def changed_tokens(self) -> int:
        """Number of tokens that were superseded because they showed what is no longer there."""
        return self._replay()[1]

    def _replay(self) -> tuple[list[Token], int]:
        tokens: list[Token] = []
        changed_tokens = 0
        valid: set[int] = set()
        for packet, content, overview in zip(self.packets, self.contents, self.overviews, strict=True):
            dropped = {*packet.superseded.tolist()}
            assert dropped <= valid, "only valid tokens can be superseded"
            valid -= dropped
            first = len(tokens)
            boxes = tile_boxes(packet.regions, content.shape).tolist()
            for region, (top, left, bottom, right) in zip(packet.regions.tolist(), boxes, strict=True):
                is_overview = len(tokens) - first < overview
                box = slice(top, bottom), slice(left, right)
                valid.add(len(tokens))
                tokens.append(Token(tuple(region), box, content, packet.stamp.media_ns, is_overview))
            assert [number for number in sorted(valid) if tokens[number].is_overview] == [
                *range(first, first + overview)
            ], "only the newest overview is shown, and all of it"
            areas = smallest_areas([tokens[number] for number in valid], content.shape)
            for token in (tokens[number] for number in dropped):
                changed_tokens += not token.shows(content)
                is_covered = (areas[token.tiles] < token.area).all()
                assert token.is_overview or is_covered or token.is_near_change(content), "a token goes for a reason"
        return [tokens[number] for number in sorted(valid)], changed_tokens

    def shown_tiles(self) -> npt.NDArray[np.bool_]:
        """The tiles that the group showed at some time, not only in an overview: bool [rows, cols]."""
        mask = np.zeros(self.contents[0].shape, bool)
        for packet, overview in zip(self.packets, self.overviews, strict=True):
            for top, left, bottom, right in tile_boxes(packet.regions[overview:], packet.grid.shape).tolist():
                mask[top:bottom, left:right] = True
        return mask


def smallest_areas(tokens: list[Token], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Log2 of the area of the smallest token on each tile but an overview's, infinite without one: [rows, cols]."""
    areas = np.full(shape, np.inf)
    for token in (token for token in tokens if not token.is_overview):
        areas[token.tiles] = np.minimum(areas[token.tiles], token.area)
    return areas


def same_packet(packet: TokenPacket, other: TokenPacket) -> bool:
    arrays = (
        (packet.regions, other.regions),
        (packet.relevance, other.relevance),
        (packet.host_pixels, other.host_pixels),
        (packet.superseded, other.superseded),
    )
    fields = [(item.stamp, item.place, item.overview) for item in (packet, other)]
    return fields[0] == fields[1] and all(np.array_equal(a, b) for a, b in arrays)


class Run:
    """A stream, its allocator, and the model that is asked about it. Everything that must hold is checked.

    `exact`: pictures differ in nothing but `change`, and noise that is not to be seen, and groups show one picture.
    """

    def __init__(self, options: AllocatorOptions, rows: int = ROWS, cols: int = COLS, *, exact: bool = True) -> None:
        self.exact = exact
        self.stream, self.allocator, self.model = PictureStream(), StreamAllocator(options), Model()
        self.least_budget = (
            1 if options.glance is None or options.glance.tokens == "auto" else options.glance.tokens + 1
        )
        self.late_ns, self.number = 0, 0
        self.resize(rows, cols)
        self.frame: FrameAllocation | None = None
        self.offered: tuple[TokenPacket, Content] | None = None
        self.overviews: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = [], []
        self.is_noisy = self.asks_anew = False

    def resize(self, rows: int, cols: int) -> None:
        self.picture, self.content = scenery(rows, cols), np.zeros((rows, cols), np.int64)

    @property
    def group(self) -> GroupOfPictures:
        assert self.allocator.group is not None
        return self.allocator.group

    @property
    def newest(self) -> GroupFrame:
        assert self.group.newest is not None
        return self.group.newest

    @property
    def is_old(self) -> bool:
        """True if the model's group outlived its time and something in it was superseded."""
        lasted_ns = self.last_view.stamp.media_ns - self.model.packets[0].stamp.media_ns
        return lasted_ns > self.group.options.seconds * NS_PER_S and self.model.changed_tokens() > 0

    @property
    def within(self) -> npt.NDArray[np.bool_]:
        within = self.allocator.within(self.last_view.grid)
        return np.ones(self.last_view.grid.shape, bool) if within is None else within.numpy()

    def change(self, *tiles: tuple[int, ...]) -> None:
        """Other pixels in these tiles with the next frame."""
        self.picture, self.content = self.picture.copy(), self.content.copy()
        for row, col in tiles:
            self.number += 1
            noise = np.random.default_rng(self.number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            self.picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] = noise
            self.content[row, col] = self.number

    def set_question(self, text: str) -> None:
        self.asks_anew = self.asks_anew or text != self.allocator.question
        self.allocator.set_query(question(text))

    def view(self) -> TextureView:
        picture = self.picture
        if self.is_noisy:
            noise = np.random.default_rng().integers(-2, 3, picture.shape)
            picture, self.is_noisy = (picture + noise).clip(0, 255).astype(np.uint8), False
        view = self.stream.show(picture)
        view.stamp = replace(view.stamp, media_ns=view.stamp.media_ns + self.late_ns)
        return view

    def allocate(self, budget: int | None = None) -> None:
        """The next frame is there."""
        self.last_view, self.last_content = self.view(), self.content
        self.frame = self.allocator.allocate(self.last_view, budget=budget)

    def coarse(self) -> list[tuple[int, ...]]:
        """The overview that comes with new tokens of the newest frame."""
        assert self.frame is not None
        shape = self.last_view.grid.shape
        regions = overview_regions(shape, min(16, self.frame.inputs.plan.tokens // 3))
        boxes = tile_boxes(regions, shape).tolist()
        is_within = [self.within[top:bottom, left:right].any() for top, left, bottom, right in boxes]
        return [*map(tuple, regions[np.array(is_within, bool)].tolist())]

    def overview_of(self, packet: TokenPacket) -> int:
        """Number of the overview's tokens in the packet of the newest frame."""
        if packet.place is None or not packet.place.frame or packet.place.frames > 1:
            return packet.overview
        return len(self.coarse()) if len(packet.regions) else 0

    def new_regions(self, packet: TokenPacket | None) -> list[tuple[int, ...]]:
        """What the packet of the newest frame appends after its overview, sorted."""
        assert packet is not None
        return sorted(map(tuple, packet.regions[self.overview_of(packet) :].tolist()))

    def ask(self, budget: int | None = None) -> TokenPacket:
        """A packet of the next frame, which the model takes."""
        self.allocate(budget)
        is_old = self.exact and bool(self.model.packets) and self.is_old
        packet = self.send()
        assert not (is_old and packet.place is not None and packet.place.frame)
        self.allocator.mark_answered()
        return packet

    def send(self) -> TokenPacket:
        assert self.frame is not None
        before, newest = self.model.next_place, self.group.newest
        is_foreseen = newest is None or newest.place is None or newest.next_place == before
        preview = self.group.preview(self.last_view, self.frame)
        packet = self.group.packet(self.last_view, self.frame, before)
        if is_foreseen:
            assert preview.reason == self.newest.reason
            np.testing.assert_array_equal(preview.regions, self.newest.regions)
        self.check(packet)
        self.asks_anew = False
        if packet.place is not None:
            self.model.take(packet, self.last_content, self.overview_of(packet))
            if self.exact:
                self.check_group()
        if self.newest.reason:
            self.offered = None
        return packet

    def idle(self, tokens: int = 64, *, reads: bool = True) -> TokenPacket | None:
        """An idle packet of the next frame, if there is one, which the model reads."""
        self.allocate()
        assert self.frame is not None
        before = self.model.next_place
        self.group.glance_packet(self.last_view, self.frame, before)  # the model's place is known
        packet = None
        for is_second in (False, True):
            if packet is None and is_second:  # another frame shows that the picture rests
                self.allocate()
            if packet is None and self.group.has_idle_work(self.last_view):
                packet = self.group.idle_packet(self.last_view, self.frame, before, tokens)
        if before is not None and before == self.newest.next_place:
            self.check_held()
        if packet is None:
            return None
        place, most = packet.place, max(tokens, KEY_SHARE * self.frame.inputs.plan.tokens)
        assert place is not None
        if place.frame:
            assert self.group.next_place == replace(place, frame=place.frame + 1)
        assert (packet.stamp, packet.overview) == (self.last_view.stamp, 0)
        assert not packet.is_empty
        np.testing.assert_array_equal(packet.host_pixels, self.last_view.gather(packet.regions))
        assert len(packet.regions) == len(packet.relevance)
        self.check_overview(packet)
        if place.frame:
            assert place == before
            assert len(self.new_regions(packet)) <= most
        else:
            assert before is not None
            assert place.group > before.group
            assert len(packet.superseded) == 0
            assert len(packet.regions) <= self.group.options.tokens
        glance_regions = self.frame.allocation.regions[: self.frame.allocation.overview]
        self.overviews = self.coarse(), [*map(tuple, glance_regions.tolist())]
        self.offered = packet, self.last_content
        if reads:
            self.read()
        return packet

    def read(self, *, reports: bool = True) -> None:
        """The model reads the packet that was offered last, now, and `reports` so, or its next place shows it."""
        self._read(reports=reports)
        self.check_tokens(self.model.contents[-1])

    def read_late(self) -> None:
        """The model reads the rebuilt group that was offered, although answers about the old one came in between."""
        packet = self._read()
        assert packet.place is not None
        assert packet.place.frame == 0
        assert all(token.shows(self.model.contents[-1]) for token in self.model.tokens())

    def _read(self, *, reports: bool = True) -> TokenPacket:
        assert self.offered is not None
        packet, content = self.offered
        self.offered = None
        place = packet.place
        assert place is not None
        next_place = replace(place, frame=place.frame + 1)
        assert self.group.next_place == next_place or not place.frame
        if reports:
            self.group.on_idle_end(next_place, rebuilt=not place.frame)
            assert self.group.next_place == self.newest.next_place == next_place
        else:
            assert place.frame
        coarse, glance_regions = self.overviews
        count = len(coarse) if place.frame else self.newest.overview
        assert [*map(tuple, packet.regions[:count].tolist())] in (
            [coarse] if place.frame else [coarse, glance_regions, []]
        )
        self.model.take(packet, content, count)
        return packet

    def rest(self, tokens: int = 64) -> list[TokenPacket]:
        """Idle packets of a still picture, all of which the model reads, until there is nothing left to do."""
        packets = []
        while (packet := self.idle(tokens)) is not None:
            packets.append(packet)
            assert len(packets) <= 2 * self.content.size
        assert not self.group.has_idle_work(self.last_view)
        assert self.newest.changed_tokens == 0
        assert not self.newest.is_patched
        blurred = self.within & (smallest_areas(self.model.tokens(), self.content.shape) > 0)
        assert not blurred.any() or self.newest.held_tokens + len(self.coarse()) >= self.group.options.tokens
        self.check_tokens(self.content)
        return packets

    def check(self, packet: TokenPacket) -> None:
        """What holds for the packet of an answer."""
        frame, newest, options = self.frame, self.newest, self.group.options
        assert frame is not None
        assert packet.stamp == self.last_view.stamp
        tokens = frame.inputs.plan.tokens
        assert len(packet.regions) <= max(tokens, frame.tokens)
        np.testing.assert_array_equal(packet.host_pixels, self.last_view.gather(packet.regions))
        assert len(packet.regions) == len(packet.relevance)
        assert len(packet.regions) == newest.appended_tokens
        assert not packet.is_glance
        self.check_overview(packet)
        if packet.place is None:
            assert len(packet.regions) > options.tokens
            assert same_packet(packet, packet_from(self.last_view, frame))
        elif packet.place.frame == 0:
            assert same_packet(replace(packet, place=None), packet_from(self.last_view, frame))
        elif self.exact and self.new_regions(packet):
            assert len(packet.regions) <= (1 if self.asks_anew else KEY_SHARE) * tokens

    def check_overview(self, packet: TokenPacket) -> None:
        """A later frame's overview comes first, and is about as relevant as its tiles."""
        assert self.frame is not None
        if packet.place is None or not packet.place.frame or packet.place.frames > 1:
            return
        assert packet.overview == 0, "it is encoded with the rest"
        overview = packet.regions[: self.overview_of(packet)]
        if len(packet.superseded):
            assert packet.regions.size or not self.coarse()
        assert len(overview) <= OVERVIEW_TOKENS
        assert [*map(tuple, overview.tolist())] in ([], self.coarse())
        relevance, boxes = self.frame.relevance.numpy(), tile_boxes(overview, packet.grid.shape).tolist()
        means = [relevance[top:bottom, left:right].mean() for top, left, bottom, right in boxes]
        np.testing.assert_allclose(packet.relevance[: len(overview)], means, rtol=1e-4)

    def check_tokens(self, content: Content) -> list[Token]:
        """What holds for the tokens of a model that has read all changes."""
        tokens = self.model.tokens()
        assert all(token.shows(content) for token in tokens), "a token shows the picture as it is"
        assert 0 < len(tokens) <= self.group.options.tokens
        assert all(self.within[token.tiles].any() for token in tokens), "a token shows something of the zone"
        details = [token for token in tokens if not token.is_overview]
        regions = [token.region for token in details if token.shown_ns > self.model.packets[0].stamp.media_ns]
        assert len({*regions}) == len(regions), "a region is shown twice"
        is_shown = np.isfinite(smallest_areas(tokens, content.shape))
        assert is_shown[self.model.shown_tiles() & self.within].all(), "what was shown is shown again"
        return tokens

    def check_held(self) -> None:
        """The group knows what the model holds."""
        newest, packets, tokens = self.newest, self.model.packets, self.model.tokens()
        assert [token.region for token in tokens] == [*map(tuple, newest.regions[~newest.superseded].tolist())]
        assert [token.shown_ns for token in tokens] == newest.shown_ns[~newest.superseded].tolist()
        np.testing.assert_array_equal(newest.regions, np.concatenate([packet.regions for packet in packets]))
        begin = len(newest.regions) - len(packets[-1].regions)
        if len(packets[-1].regions):
            assert (newest.overview_begin, newest.overview) == (begin, self.model.overviews[-1])
        assert newest.is_patched == (len(packets) > 1)
        assert (len(tokens), self.model.changed_tokens()) == (newest.held_tokens, newest.changed_tokens)
        assert len(newest.regions) <= GROUP_GROWTH * newest.held_tokens
        areas = smallest_areas(tokens, newest.areas.shape)
        np.testing.assert_array_equal(np.isfinite(areas), newest.areas < STALE)
        np.testing.assert_array_equal(areas[np.isfinite(areas)], newest.areas[newest.areas < STALE])

    def check_group(self) -> None:
        """What holds once the model took the packet of an answer."""
        newest, packets = self.newest, self.model.packets
        assert {packet.stamp.epoch for packet in packets} == {self.last_view.stamp.epoch}
        self.check_tokens(self.last_content)
        self.check_held()
        assert newest.states.count("new") == newest.appended_tokens
        assert newest.states.count("superseded") == newest.superseded_tokens


def area_of(region: tuple[int, ...]) -> int:
    return sum((region[0], region[0]) if region[0] < 6 else SHAPES[region[0]])


SHAPES = {6: (0, 1), 7: (0, 2), 8: (1, 2), 9: (0, 3), 10: (1, 0), 11: (2, 0), 12: (2, 1), 13: (3, 0)}


def options(budget: int = 10, memory: GroupOptions | None = None, **fields: object) -> AllocatorOptions:
    return AllocatorOptions(budget=budget, memory=memory or GroupOptions(patch=True), **fields)  # type: ignore[arg-type]


def question(text: str) -> QueryEmbedding:
    return QueryEmbedding(text, np.zeros((2, 8), np.float32), "m")


tiles = st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLS - 1))
few_tiles = st.lists(tiles, min_size=1, max_size=12)
named_actions = ["still", "noise", "all", "cut", "size", "lost", "stale", "again", "skip", "fail", "glance", "arrive"]
actions = st.one_of(
    st.tuples(st.just("change"), few_tiles),
    st.tuples(st.just("idle change"), few_tiles),
    st.tuples(st.sampled_from(named_actions), st.none()),
    st.tuples(st.sampled_from(["idle", "give up", "budget", "late"]), st.integers(1, 40)),
    st.tuples(st.just("question"), st.integers(0, 2)),
    st.tuples(st.just("feedback"), st.integers(0, 1000)),
)


def act(run: Run, action: str, value: object) -> None:
    """Something happens, and an answer follows, or idle time."""
    number = value if isinstance(value, int) else 0
    budget = None
    if action in ("change", "idle change"):
        run.change(*value)  # type: ignore[misc]
    elif action == "all":
        run.change(*np.ndindex(run.content.shape))
    elif action == "noise":
        run.is_noisy = True
    elif action in ("cut", "size"):
        run.stream.cut()
        if action == "size":
            run.number += 1
            run.resize(ROWS + run.number % 2, COLS + 2)
    elif action == "lost":
        run.model.forget()
    elif action == "stale" and len(run.model.packets) > 1:
        run.model.forget(1)
    elif action == "budget":
        budget = max(number, run.least_budget)
    elif action == "late":
        run.late_ns += number * NS_PER_S
    elif action == "question":
        run.set_question(f"what {number}?")
    elif action == "feedback" and run.model.packets:
        run.allocator.apply_feedback(feedback(run, number))
    elif action == "skip":
        run.allocator.allocate(run.view())
    elif action == "arrive" and run.offered is not None and run.model.packets:
        run.read()
    if action in ("idle", "idle change"):
        run.idle(number or 8)
    elif action == "give up":
        run.idle(number, reads=False)
        if run.offered is not None and run.offered[0].place is not None and run.offered[0].place.frame:
            run.offered = None
    elif action == "again" and run.frame is not None:
        run.send()
    elif action == "fail":
        run.allocate()
        run.frame = all_tokens(run.last_view, run.allocator.within(run.last_view.grid))
        run.send()
        assert run.newest.reason in ("failed", "first", "epoch", "")
    else:
        run.ask(budget)
    if action == "glance":
        look(run)


def feedback(run: Run, seed: int) -> Feedback:
    """An answer's about all tokens of the group."""
    rng, regions = np.random.default_rng(seed), np.unique(run.newest.regions, axis=0)
    attention, similarity = rng.random((2, len(regions)), dtype=np.float32)
    return Feedback(run.newest.stamp, regions, attention, similarity)


def look(run: Run) -> None:
    """A glance at the group, and the answer after it."""
    assert run.frame is not None
    packet = run.group.glance_packet(run.last_view, run.frame, run.model.next_place)
    if run.model.next_place is None:
        assert packet is None
    if packet is None:
        return
    assert (packet.place, len(packet.regions), packet.overview) == (run.model.next_place, 0, 0)
    run.allocator.on_glance()
    run.allocator.apply_glance(feedback(run, 1))
    run.frame = run.allocator.reallocate(run.last_view)
    run.send()


ROOMS = [20, 45, 70, 2048]


@settings(max_examples=100)
@given(
    steps=st.lists(actions, min_size=1, max_size=14),
    tokens=st.sampled_from(ROOMS),
    seconds=st.sampled_from([1.0, 30.0, 600.0]),
    budget=st.integers(1, 40),
    idle_tokens=st.integers(1, 40),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    patch=st.booleans(),
)
def test_a_group_keeps_its_promises(
    steps: list[tuple[str, object]],
    tokens: int,
    seconds: float,
    budget: int,
    idle_tokens: int,
    flags: tuple[bool, bool, bool, bool],
    patch: bool,
) -> None:
    covers, wide, glances, is_focused = flags
    strategy = "foveated" if covers else "auto"
    glance = GlanceOptions(min(4, budget - 1)) if glances and budget > 1 else None
    memory = GroupOptions(tokens, seconds, patch=patch)
    zones = ZoneOptions(focus=(LEFT,)) if is_focused else None
    run = Run(options(budget, memory, strategy=strategy, wide=wide and covers, glance=glance, zones=zones))
    run.set_question("what?")
    for action, value in steps:
        act(run, action, value)
    act(run, "arrive", None)
    if run.newest.place is not None:
        run.rest(idle_tokens)


@pytest.mark.parametrize("strategy", ["auto", "foveated"])
@pytest.mark.parametrize("budget", [1, 10, 34])
def test_idle_packets_end_with_all_tiles_shown_at_level_0(strategy: str, budget: int) -> None:
    run = Run(options(budget, strategy=strategy))
    run.ask()
    *packets, rebuilt = run.rest(4)
    assert all(len(packet.regions) <= 4 + len(run.coarse()) for packet in packets)
    assert [packet.place for packet in packets] == [GroupPlace(1, index + 1) for index in range(len(packets))]
    assert (rebuilt.place, len(rebuilt.regions)) == (GroupPlace(2, 0), ROWS * COLS)
    assert (run.newest.held_tokens, int(run.newest.areas.max())) == (ROWS * COLS, 0)
    assert (run.ask().is_empty, run.newest.reason) == (True, "")
    assert run.newest.place == GroupPlace(2, 1)


@pytest.mark.parametrize("strategy", ["auto", "foveated"])
def test_an_answer_about_a_still_scene_appends_nothing(strategy: str) -> None:
    run = Run(options(10, strategy=strategy))
    first = run.ask()
    for seed in range(5):
        run.allocator.apply_feedback(feedback(run, seed))
        packet = run.ask()
        assert (packet.place, len(packet.regions)) == (GroupPlace(1, 1), 0)
    assert run.newest.held_tokens == len(first.regions)


def test_another_question_appends_what_it_wants() -> None:
    run = Run(options(12, strategy="topk", explore=0.0))
    run.set_question("what?")
    run.ask()
    hidden = [tile for tile in ALL_TILES if run.newest.areas[tile]][:2]
    want(run, *hidden)
    assert run.ask().is_empty, "the question is the same"
    run.set_question("where?")
    assert set(level_0(*hidden)) <= set(run.new_regions(run.ask()))
    assert run.newest.place == GroupPlace(1, 1)
    assert run.ask().is_empty


def attention_to(run: Run, *tiles: tuple[int, ...]) -> Feedback:
    regions = np.array([(0, *tile) for tile in tiles], np.int32)
    return Feedback(run.newest.stamp, regions, np.ones(len(tiles), np.float32), np.ones(len(tiles), np.float32))


def want(run: Run, *tiles: tuple[int, ...]) -> None:
    """From now on, these tiles are the most relevant."""
    floor = np.zeros(run.content.shape, np.float32)
    for tile in tiles:
        floor[tile] = 1
    run.allocator.set_floor(floor)


def level_0(*tiles: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(0, *tile) for tile in tiles]


def test_a_tile_that_changed_is_shown_again_at_level_0() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((2, 3), (4, 0))
    packet = run.ask()
    assert packet.place == GroupPlace(1, 1)
    assert run.new_regions(packet) == level_0((2, 3), (4, 0))
    assert run.newest.superseded_tokens == 2
    run.change((2, 3))
    assert run.new_regions(run.ask()) == level_0((2, 3))
    assert (run.newest.superseded_tokens, run.newest.held_tokens) == (3 + 4, ROWS * COLS + 4), "4 are an overview"


def test_a_patch_shows_again_what_is_near_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "NEAR_TILES", 2)
    run = Run(options(400), rows=12, cols=16, exact=False)
    run.allocate()
    run.send()  # shows all tiles
    run.change((2, 3))
    patch = [(0, row, col) for row in range(5) for col in range(1, 6)]
    assert run.new_regions(run.ask()) == patch
    run.change((9, 13))
    assert len(run.new_regions(run.ask())) == 25


def test_idle_packets_show_what_changed_before_they_refine() -> None:
    run = Run(options(12, strategy="topk", explore=0.0))
    run.ask()
    changed = [*map(tuple, np.argwhere(run.newest.areas == 0)[:3].tolist())]
    want(run, (4, 5), (4, 6))
    run.change(*changed)
    assert run.new_regions(run.idle(2)) == level_0(*changed)
    assert run.new_regions(run.idle(2)) == level_0((4, 5), (4, 6))


def test_an_idle_packet_shows_what_changed_once() -> None:
    """Not once more as a tile that is not shown."""
    run = Run(options(12, strategy="topk", explore=0.0))
    run.ask()
    tiles_at_level_0 = [*map(tuple, np.argwhere(run.newest.areas == 0).tolist())]
    want(run, *(tile for tile in ALL_TILES if tile not in tiles_at_level_0))
    run.change(tiles_at_level_0[0])
    regions = run.new_regions(run.idle())
    assert regions == level_0(*(tile for tile in ALL_TILES if tile not in tiles_at_level_0[1:]))


def test_idle_packets_refine_the_most_relevant_tiles_first() -> None:
    run = Run(options(10, strategy="topk", explore=0.0))
    run.ask()
    packet = run.idle(6)
    assert packet is not None
    assert run.frame is not None
    relevance = run.frame.relevance.numpy()
    regions = packet.regions[run.overview_of(packet) :]
    values = relevance[regions[:, 1], regions[:, 2]]
    run.ask()
    assert len(values) == 6
    assert (np.diff(values) <= 0).all()
    assert values[-1] >= relevance[run.newest.areas > 0].max()


def began_after(run: Run, action: str, value: object = None) -> str:
    run.ask()
    act(run, action, value)
    return run.newest.reason


@pytest.mark.parametrize(
    ("action", "value", "reason"),
    [
        ("still", None, ""),
        ("cut", None, "epoch"),
        ("size", None, "epoch"),
        ("lost", None, "lost"),
        ("all", None, "changed"),
        ("fail", None, "failed"),
        ("again", None, "first"),
    ],
)
def test_a_group_begins_for_a_reason(action: str, value: object, reason: str) -> None:
    assert began_after(Run(options()), action, value) == reason


def test_a_group_begins_when_time_goes_back() -> None:
    assert began_after(Run(options()), "late", -1) == "epoch"


@pytest.mark.parametrize(("seconds", "reason"), [(61, "age"), (59, "")])
def test_an_old_group_ends_if_something_was_superseded(seconds: int, reason: str) -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((0, 0))
    run.ask()
    assert began_after(run, "late", seconds) == reason


def test_age_without_a_change_ends_no_group() -> None:
    """Neither does detail that took the place of coarse tokens."""
    run = Run(options(8, strategy="foveated", explore=0.0))
    assert began_after(run, "late", 1000) == ""
    run.idle(20)
    assert run.newest.superseded_tokens > 0
    assert began_after(run, "late", 1000) == ""
    run.rest()
    assert run.rest() == []


def test_an_old_group_is_rebuilt_in_idle_time_although_it_is_not_complete() -> None:
    run = Run(options(12, strategy="topk", explore=0.0))
    run.ask()
    run.change(tuple(run.newest.regions[0, 1:].tolist()))
    run.ask()
    run.late_ns += 61 * NS_PER_S
    packet = run.idle(1)
    assert packet is not None
    assert (packet.place, len(packet.regions)) == (GroupPlace(2, 0), 13 + len(run.coarse()))
    assert run.newest.overview == len(run.coarse()) == 4


def test_a_group_begins_if_its_tokens_are_a_multiple_of_those_that_it_shows() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    places = []
    for _ in range(6):
        run.change(*ALL_TILES[:20])
        places.append(run.ask().place)
    assert places == [*(GroupPlace(1, index) for index in range(1, 6)), GroupPlace(2, 0)]
    assert run.newest.reason == "superseded"


@pytest.mark.parametrize(("count", "reason"), [(22, ""), (23, "changed")])
def test_a_group_begins_where_news_cost_about_as_much_as_a_key_frame(count: int, reason: str) -> None:
    """Of 35 tokens, 26.25 are the limit, and 4 are the overview."""
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change(*ALL_TILES[:count])
    run.ask()
    assert (run.newest.place, run.newest.reason) == ((GroupPlace(2, 0) if reason else GroupPlace(1, 1)), reason)


@pytest.mark.parametrize(("count", "reason"), [(6, ""), (8, ""), (9, "changed")])
def test_tokens_of_another_question_may_cost_as_much_as_a_key_frame(count: int, reason: str) -> None:
    """Of 12 tokens, 4 are the overview."""
    run = Run(options(12, strategy="topk", explore=0.0))
    run.set_question("what?")
    run.ask()
    want(run, *[tile for tile in ALL_TILES if run.newest.areas[tile]][:count])
    run.set_question("where?")
    packet = run.ask()
    assert (run.newest.reason, len(packet.regions)) == (reason, 12 if reason else count + 4)


def test_a_change_that_costs_as_much_as_a_key_frame_begins_a_group_in_idle_time() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change(*ALL_TILES[:23])
    packet = run.idle()
    assert packet is not None
    assert packet.place == GroupPlace(2, 0)
    run.ask()
    assert (run.newest.place, run.newest.reason) == (GroupPlace(2, 1), "")


def test_idle_packets_let_a_group_grow_no_further_than_answers_do() -> None:
    """A model refuses a group of more tokens."""
    run = Run(options(ROWS * COLS))
    run.ask()
    for _ in range(40):
        run.change((0, 1))
        run.idle()
    assert len({packet.place.group for packet in run.model.packets if packet.place is not None}) == 1
    assert run.newest.place is not None
    assert run.newest.place.group == 2, "it was written anew"
    assert len(run.newest.regions) <= GROUP_GROWTH * run.newest.held_tokens


def test_idle_packets_wait_for_an_answer_while_a_group_that_has_grown_changes() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    places = []
    for _ in range(40):
        run.change((0, 1))
        run.allocate()
        assert run.frame is not None
        packet = run.group.idle_packet(run.last_view, run.frame, run.model.next_place, 64)
        if packet is not None:
            run.model.take(packet, run.last_content, run.overview_of(packet))
            run.group.on_idle_end(run.model.next_place)
            places.append(packet.place)
        assert len(run.newest.regions) <= GROUP_GROWTH * run.newest.held_tokens
    assert places == [GroupPlace(1, number) for number in range(1, 25)]
    run.change((0, 1))
    assert (run.ask().place, run.newest.reason) == (GroupPlace(2, 0), "superseded")


def test_without_patches_a_change_begins_a_group() -> None:
    """The tokens that stay were computed beside what is gone."""
    run = Run(options(ROWS * COLS, GroupOptions()))
    run.ask()
    run.change((0, 0))
    packet = run.ask()
    assert (packet.place, run.newest.reason) == (GroupPlace(2, 0), "outdated")
    assert run.ask().place == GroupPlace(2, 1)


def test_without_patches_a_group_begins_ahead_of_the_answer_once_the_picture_rests() -> None:
    run = Run(options(ROWS * COLS, GroupOptions()))
    run.ask()
    run.change((0, 0))
    packet = run.idle()
    assert packet is not None
    assert (packet.place, packet.overview) == (GroupPlace(2, 0), 0)
    answer = run.ask()
    assert (answer.place, len(answer.regions), run.newest.reason) == (GroupPlace(2, 1), 0, "")


def test_without_patches_nothing_is_read_ahead_while_the_picture_changes() -> None:
    run = Run(options(ROWS * COLS, GroupOptions()))
    run.ask()
    for step in range(3):
        run.change((0, step))
        run.allocate()
        assert run.frame is not None
        assert run.group.idle_packet(run.last_view, run.frame, run.model.next_place, 64) is None


def test_a_full_group_refines_no_further_and_a_new_question_begins_another() -> None:
    run = Run(options(12, GroupOptions(tokens=20, patch=True), strategy="topk", explore=0.0))
    run.set_question("what?")
    run.ask()
    assert [len(packet.regions) for packet in run.rest()] == [8, 16], "4 are the overview, which the rebuilt one lacks"
    assert (run.newest.place, run.newest.held_tokens) == (GroupPlace(2, 0), 16)
    visible = {tuple(region) for region in run.newest.regions[:, 1:].tolist()}
    hidden = [tile for tile in ALL_TILES if tile not in visible][:3]
    want(run, *hidden)
    run.set_question("where?")
    assert (run.ask().place, run.newest.reason) == (GroupPlace(3, 0), "full")


def test_room_that_coarse_tokens_leave_is_used() -> None:
    run = Run(options(8, GroupOptions(tokens=24, patch=True), strategy="foveated", explore=0.0))
    run.ask()
    *packets, rebuilt = run.rest()
    assert [len(packet.regions) for packet in packets] == [1 + 16, 1 + 1]
    assert (len(rebuilt.regions), run.newest.held_tokens) == (23, 23)


def test_a_coarse_token_goes_once_smaller_ones_show_all_of_it() -> None:
    run = Run(options(8, strategy="foveated", explore=0.0))
    run.ask()
    assert (run.newest.regions[:, 0] > 0).any()
    run.rest(3)
    assert (run.newest.held_tokens, run.newest.reason) == (ROWS * COLS, "rebuilt")
    assert (run.newest.regions[:, 0] == 0).all()


def offered_run() -> Run:
    """A complete group of which one tile has changed since, as an answer has shown."""
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((2, 3))
    run.ask()
    assert run.newest.held_tokens == ROWS * COLS + len(run.coarse())
    return run


@pytest.mark.parametrize("reports", [False, True])
def test_an_idle_packet_counts_once_the_model_has_read_it(reports: bool) -> None:
    """As it reports, or as its next place shows."""
    run = Run(options(10))
    run.ask()
    packet = run.idle(5, reads=False)
    assert packet is not None
    assert (packet.place, run.newest.held_tokens) == (GroupPlace(1, 1), 10)
    run.read(reports=reports)
    assert run.newest.held_tokens == (10 + 5 + 1 if reports else 10)
    run.change(*ALL_TILES[:3])
    assert run.ask().place == GroupPlace(1, 2)


def test_an_idle_packet_follows_the_one_that_the_model_has_read() -> None:
    run = Run(options(10))
    run.ask()
    run.idle(5, reads=False)
    run.read(reports=False)
    run.allocate()
    assert run.frame is not None
    packet = run.group.idle_packet(run.last_view, run.frame, run.model.next_place, 5)
    assert packet is not None
    assert (packet.place, run.newest.held_tokens) == (GroupPlace(1, 2), 16)


def test_an_idle_packet_that_the_model_gives_up_is_forgotten() -> None:
    run = Run(options(10))
    run.ask()
    for _ in range(2):
        packet = run.idle(5, reads=False)
        assert packet is not None
        assert packet.place == GroupPlace(1, 1)
    assert run.group.next_place == GroupPlace(1, 2)
    assert (run.ask().place, run.newest.held_tokens) == (GroupPlace(1, 1), 10)
    assert run.group.next_place == GroupPlace(1, 1)


def test_an_answer_takes_the_place_of_an_idle_packet_that_was_given_up() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((2, 3))
    run.idle(reads=False)
    run.change((2, 4))
    assert run.new_regions(run.ask()) == level_0((2, 3), (2, 4))
    assert run.newest.place == GroupPlace(1, 1)


def test_tiles_that_an_idle_packet_showed_are_not_shown_again() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((2, 3))
    assert run.new_regions(run.idle()) == level_0((2, 3))
    run.change((2, 4))
    packet = run.ask()
    assert (packet.place, run.new_regions(packet)) == (GroupPlace(1, 2), level_0((2, 4)))


def test_a_complete_group_is_rebuilt_once_its_picture_rests() -> None:
    run = offered_run()
    valid_regions = sorted(token.region for token in run.model.tokens() if not token.is_overview)
    packet = run.idle()
    assert packet is not None
    assert (packet.place, packet.overview, len(packet.superseded)) == (GroupPlace(2, 0), 0, 0)
    assert run.new_regions(packet) == valid_regions
    assert run.rest() == []
    assert (run.newest.place, run.newest.superseded_tokens) == (GroupPlace(2, 0), 0)
    assert run.newest.begun_ns == packet.stamp.media_ns
    assert run.newest.shown_ns.tolist() == [packet.stamp.media_ns] * ROWS * COLS


def test_answers_go_on_in_the_old_group_until_the_model_has_read_the_rebuilt_one() -> None:
    run = offered_run()
    run.idle(reads=False)
    run.change((0, 1))
    packet = run.ask()
    assert (packet.place, run.new_regions(packet)) == (GroupPlace(1, 2), level_0((0, 1)))
    assert run.idle() is None, "one group is being rebuilt already"
    assert not run.group.has_idle_work(run.last_view)
    assert run.group.next_place == GroupPlace(1, 3)
    run.change((4, 4))
    assert run.ask().place == GroupPlace(1, 3)
    run.read_late()
    packet = run.ask()
    assert (packet.place, run.new_regions(packet)) == (GroupPlace(2, 1), level_0((0, 1), (4, 4)))
    assert run.newest.held_tokens == ROWS * COLS + len(run.coarse())


def test_idle_packets_append_what_changed_since_a_group_was_rebuilt() -> None:
    run = offered_run()
    run.idle(reads=False)
    run.change((0, 1))
    run.ask()
    run.read_late()
    packet = run.idle()
    assert packet is not None
    assert (packet.place, run.new_regions(packet)) == (GroupPlace(2, 1), level_0((0, 1)))


@pytest.mark.parametrize(("action", "reason"), [("cut", "epoch"), ("all", "changed"), ("lost", "lost")])
def test_a_rebuilt_group_is_given_up_for_another_one(action: str, reason: str) -> None:
    run = offered_run()
    run.idle(reads=False)
    act(run, action, None)
    assert (run.newest.place, run.newest.reason) == (GroupPlace(3, 0), reason)
    assert run.group.next_place == GroupPlace(3, 1)
    assert run.ask().is_empty


def test_a_rebuilt_group_stays_on_offer_if_a_frame_is_asked_about_once_more() -> None:
    run = Run(options(ROWS * COLS, GroupOptions()))
    run.ask()
    assert run.frame is not None
    view, frame = run.last_view, run.frame
    run.change(*ALL_TILES[:12])
    packet = run.idle(reads=False)
    assert packet is not None
    assert packet.place == GroupPlace(2, 0)
    run.group.packet(view, frame, GroupPlace(1, 1))
    assert run.group.next_place == GroupPlace(1, 1)
    run.read()
    assert run.ask().place == GroupPlace(2, 1)


def test_a_rebuilt_group_shows_last_what_changed_lately() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    for tile in ((2, 3), (0, 0), (4, 6)):
        run.change(tile)
        run.ask()
    packet = run.idle()
    assert packet is not None
    assert [*map(tuple, packet.regions[-3:].tolist())] == level_0((2, 3), (0, 0), (4, 6))
    assert run.frame is not None
    relevance = run.frame.relevance.numpy()[packet.regions[:, 1], packet.regions[:, 2]]
    np.testing.assert_allclose(packet.relevance, relevance, rtol=1e-6)


def test_idle_work_is_what_changed_what_is_blurred_and_what_was_superseded() -> None:
    run = Run(options(10))
    view = run.view()
    assert not run.group.has_idle_work(view), "no group"
    run.ask()
    assert run.group.has_idle_work(run.last_view), "not complete"
    run.rest()
    assert not run.group.has_idle_work(run.view())
    run.change((2, 3))
    assert run.group.has_idle_work(run.view()), "changed"
    run.ask()
    assert run.group.has_idle_work(run.last_view), "superseded"
    run.rest()
    run.stream.cut()
    assert not run.group.has_idle_work(run.view()), "only a key frame shows what follows a cut"


def test_noise_is_no_work_for_long() -> None:
    run = Run(options(10))
    run.ask()
    run.rest()
    for _ in range(3):
        run.is_noisy = True
        assert run.rest() == []


def test_several_frames_have_no_idle_work() -> None:
    run = Run(options(10, GroupOptions(frames=3)), exact=False)
    run.ask()
    run.change((2, 3))
    run.allocate()
    assert run.frame is not None
    assert not run.group.has_idle_work(run.last_view)
    assert run.group.idle_packet(run.last_view, run.frame, run.model.next_place, 9) is None


@pytest.mark.parametrize(("budget", "overview"), [(2, 0), (3, 1), (11, 1), (12, 4), (35, 4), (36, 12), (300, 12)])
def test_a_later_frame_begins_with_a_coarse_overview(budget: int, overview: int) -> None:
    """At most 16 regions, and a third of the budget."""
    run = Run(options(budget, strategy="topk", explore=0.0))
    assert len(run.ask(min(budget, 20)).regions) == min(budget, 20)
    assert (run.newest.overview, run.newest.is_patched) == (0, False)
    run.allocate(budget)
    assert run.frame is not None
    run.frame.inputs = replace(run.frame.inputs, plan=replace(run.frame.inputs.plan, tokens=budget))
    packet = run.group.idle_packet(run.last_view, run.frame, run.model.next_place, 5)
    assert packet is not None
    assert (run.overview_of(packet), len(packet.regions), len(packet.superseded)) == (overview, overview + 5, 0)
    run.check_overview(packet)


def test_each_overview_takes_the_place_of_the_one_before() -> None:
    run = Run(options(12, strategy="topk", explore=0.0))
    run.ask()
    places = []
    for _ in range(3):
        packet = run.idle(3)
        assert packet is not None
        assert packet.superseded.tolist() == [*range(run.newest.overview_begin - 7, run.newest.overview_begin - 3)] * (
            len(places) > 0
        )
        places.append((run.newest.overview_begin, run.newest.overview))
    assert places == [(12, 4), (19, 4), (26, 4)]
    assert run.newest.held_tokens == 12 + 9 + 4


def test_the_overview_of_a_glance_goes_with_the_first_new_tokens() -> None:
    """It is part of the key frame, which is encoded apart from it."""
    run = Run(options(12, glance=GlanceOptions(4)))
    packet = run.ask()
    assert packet.overview == run.newest.overview > 0
    later_packet = run.idle(3)
    assert later_packet is not None
    assert set(range(packet.overview)) <= {*later_packet.superseded.tolist()}
    assert (run.newest.overview_begin, later_packet.overview) == (len(packet.regions), 0)


def test_a_change_that_only_the_overview_showed_brings_another_overview() -> None:
    run = Run(options(12, strategy="topk", explore=0.0))
    run.ask()
    run.idle(1)
    hidden = next(tile for tile in ALL_TILES if run.newest.areas[tile] == NEVER)
    want(run, *(tuple(region[1:]) for region in run.newest.regions.tolist() if region[0] == 0))
    run.change(hidden)
    packet = run.ask()
    assert [*map(tuple, packet.regions.tolist())] == run.coarse()
    assert packet.superseded.tolist() == [*range(12, 16)]
    assert (run.newest.areas[hidden], run.newest.changed_tokens) == (NEWS, 1)


def test_the_overview_lies_within_the_zone_that_the_question_is_about() -> None:
    run = Run(options(12, zones=ZoneOptions(focus=(LEFT,))), rows=12, cols=20)
    run.ask()
    packet = run.idle()
    assert packet is not None
    everywhere = [*map(tuple, overview_regions((12, 20), 4).tolist())]
    assert (len(everywhere), run.coarse()) == (2, everywhere[:1])
    assert tuple(packet.regions[0].tolist()) == everywhere[0]
    assert (packet.regions[1:, 0] == 0).all()


def test_a_change_beyond_the_zone_is_not_shown() -> None:
    run = Run(options(ROWS * COLS, zones=ZoneOptions(focus=(LEFT,))))
    run.ask()
    run.rest()
    run.change((0, 0), (0, 6))
    assert run.new_regions(run.ask()) == level_0((0, 0))
    run.rest()
    run.change((0, 6))
    assert run.rest() == []


def test_a_coarse_token_that_changed_is_shown_again_within_the_zone_alone() -> None:
    zones = ZoneOptions(focus=(LEFT,))
    run = Run(options(8, strategy="foveated", explore=0.0, zones=zones))
    run.ask()
    assert [1, 0, 1] in run.newest.regions.tolist(), "two columns of it lie on both sides of the border"
    run.change((0, 3))
    run.last_view, run.last_content = run.view(), run.content
    other_run = Run(options(8, strategy="topk", explore=0.0, zones=zones))
    want(other_run, *((row, col) for row in (1, 2, 3, 4) for col in (0, 1)))
    run.frame = other_run.allocator.allocate(run.last_view)
    assert run.new_regions(run.send()) == level_0((0, 2), (1, 2))


def test_a_frame_that_alone_exceeds_the_limit_is_complete_in_itself() -> None:
    run = Run(options(30, GroupOptions(tokens=29, patch=True)))
    for _ in range(2):
        assert run.ask().place is None
        assert (run.newest.place, run.newest.reason, run.newest.next_place) == (None, "", None)
        assert not run.group.has_idle_work(run.last_view)
        assert run.idle() is None
    assert run.ask(budget=10).place == GroupPlace(1, 0)


def test_a_group_is_never_numbered_as_one_that_the_model_holds() -> None:
    run = Run(options())
    run.allocate()
    assert run.frame is not None
    assert run.group.packet(run.last_view, run.frame, GroupPlace(7, 3)).place == GroupPlace(8, 0)


def test_the_same_frame_gives_the_same_packet_before_and_after_the_model_took_it() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    run.change((0, 0))
    first = run.ask()
    assert (first.place, run.new_regions(first)) == (GroupPlace(1, 1), level_0((0, 0)))
    assert run.frame is not None
    for place in (GroupPlace(1, 1), GroupPlace(1, 2)):
        assert same_packet(run.group.packet(run.last_view, run.frame, place), first)


def test_a_glance_at_the_group_takes_no_tokens() -> None:
    run = Run(options(10, glance=GlanceOptions("auto")))
    assert run.group.glance_packet(run.view(), all_tokens(run.view()), None) is None
    run.ask()
    run.idle(5)
    look(run)
    assert run.newest.place is not None
    assert run.newest.place.group == 1


def test_feedback_of_a_glance_at_the_group_reaches_the_tiles_that_it_names() -> None:
    run = Run(options(10, glance=GlanceOptions("auto")))
    run.ask()
    run.allocator.on_glance()
    run.allocator.apply_glance(attention_to(run, (4, 6), (4, 5)))
    frame = run.allocator.reallocate(run.last_view)
    assert frame.maps is not None
    assert frame.maps.prior is not None
    assert np.argwhere(frame.maps.prior[2].numpy() > 0).tolist() == [[4, 5], [4, 6]]
    assert not np.array_equal(overview_regions((ROWS, COLS), 2), [(0, 4, 6), (0, 4, 5)])


def test_tokens_of_the_group_are_explained() -> None:
    run = Run(options(16, strategy="topk", explore=0.0))
    run.ask()
    run.idle(10)
    changed = tuple(run.newest.regions[0, 1:].tolist())
    run.change(changed)
    run.ask()
    assert run.frame is not None
    reasons = explain(run.frame, run.newest.regions)
    assert sorted(reason.rank for reason in reasons) == list(range(1, 36)), "8 of two overviews are among them"
    states = ["superseded"] + ["shown"] * 15 + ["superseded"] * 4 + ["shown"] * 10 + ["new"] * 5
    assert run.newest.states == states
    assert run.newest.shown_ns.tolist() == [0] * 16 + [FRAME_NS] * 14 + [2 * FRAME_NS] * 5
    assert run.group.newest_of(run.frame) is run.newest
    assert run.group.newest_of(None) is None


def test_copies_for_pictures_have_no_group() -> None:
    allocator = StreamAllocator(options())
    assert allocator.group is not None
    assert allocator.copy_for_thread().group is None
    assert StreamAllocator().group is None


def test_each_of_several_frames_is_whole_and_an_unchanged_one_appends_nothing() -> None:
    run = Run(options(10, GroupOptions(frames=3)), exact=False)
    packets = [run.ask()]
    assert len(run.ask().regions) == 0, "nothing changed"
    for tile in range(4):
        run.change((2, tile))
        packets.append(run.ask())
    assert [packet.place for packet in packets] == [GroupPlace(1, index, 3) for index in range(5)]
    assert [len(packet.regions) for packet in packets] == [10] * 5
    assert all(len(packet.superseded) == 0 for packet in packets)
    assert (run.newest.held_tokens, run.newest.appended_tokens, run.newest.superseded_tokens) == (30, 10, 0)
    expected = np.concatenate([packet.regions for packet in packets[-3:]])
    np.testing.assert_array_equal(run.newest.regions, expected)
    assert np.unique(run.newest.shown_ns).tolist() == [packet.stamp.media_ns for packet in packets[-3:]]
    run.allocator.set_query(question("what?"))
    assert len(run.ask().regions) == 10, "another question chooses other tokens"


def test_several_frames_last_until_a_cut_or_their_limit() -> None:
    """As many are shown as fit; their age does not matter."""
    run = Run(options(10, GroupOptions(tokens=25, seconds=1.0, frames=3)), exact=False)
    for index in range(4):
        run.change((0, 0))
        run.late_ns += 2 * NS_PER_S
        run.ask()
        assert run.newest.place == GroupPlace(1, index, 2)
        assert run.newest.held_tokens == min(index + 1, 2) * 10
    act(run, "cut", None)
    assert (run.newest.place, run.newest.reason) == (GroupPlace(2, 0, 2), "epoch")


def test_a_paused_source_counts_its_frames() -> None:
    run = Run(options(10, GroupOptions(frames=3)), exact=False)
    for query in ("what?", "where?", "who?", "why?"):
        run.allocator.set_query(question(query))
        run.late_ns -= FRAME_NS
        run.ask()
    assert run.newest.lengths == (10, 10, 10)


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"frames": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_limits_out_of_range_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        GroupOptions(**limits)  # type: ignore[arg-type]


def ordinary_run() -> Run:
    return Run(options(12), exact=False)


@pytest.mark.parametrize(("noise", "stays"), [(5, True), (40, False)])
def test_noise_supersedes_nothing_and_a_change_does(noise: int, stays: bool) -> None:
    """Every tile has a new version, by noise that the texture notices; only what looks different is shown again."""
    run = ordinary_run()
    run.ask()
    random, ground = np.random.default_rng(0), run.picture.astype(np.int16)
    for _ in range(4):
        run.picture = np.clip(ground + random.normal(0, noise, ground.shape), 0, 255).astype(np.uint8)
        run.ask()
        assert (run.newest.appended_tokens == 0) == stays


def test_a_slow_drift_is_shown_again_in_time() -> None:
    """What light does not explain, at the latest once it is a change of a fifth."""
    run = ordinary_run()
    run.ask()
    ground = run.picture.astype(np.int16)
    token_counts = []
    for step in range(16):
        run.picture = np.clip(ground + 4 * step, 0, 255).astype(np.uint8)
        run.ask()
        token_counts.append(run.newest.appended_tokens)
    assert token_counts[:4] == [0, 0, 0, 0]
    assert sum(token_counts) > 0


def test_flickering_light_is_no_news_and_no_work_for_long() -> None:
    run = ordinary_run()
    run.picture = ground = run.picture.clip(0, 150)
    run.ask()
    run.rest()
    for gain in (1.0, 1.2, 1.0, 1.2, 1.1, 1.2):
        run.picture = (ground * gain).astype(np.uint8)
        assert run.ask().is_empty
        assert [run.idle() for _ in range(LASTING_LOOKS)] == [None] * LASTING_LOOKS
        assert not run.group.has_idle_work(run.last_view)
