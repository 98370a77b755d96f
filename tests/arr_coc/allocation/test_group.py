"""Groups of pictures: what is appended, when a new one begins, and what never happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.group import GroupFrame, GroupOfPictures, GroupOptions
from arr_coc.allocation.packets import all_tokens, explain, packet_from
from arr_coc.errors import OptionError
from arr_coc.ops.regions import overview_regions, tile_boxes
from arr_coc.ops.store.base import TextureView
from arr_coc.types import GROUP_GROWTH, NS_PER_S, Feedback, GroupPlace, QueryEmbedding, TokenPacket
from tests.support.video import FRAME_NS, PictureStream, scenery

ROWS, COLS = 5, 7


class Model:
    """Store of the packets of a client's group, as in an answer server."""

    def __init__(self) -> None:
        self.packets: list[TokenPacket] = []

    @property
    def next_place(self) -> GroupPlace | None:
        place = self.packets[0].place if self.packets else None
        return None if place is None else replace(place, frame=len(self.packets))

    def take(self, packet: TokenPacket) -> None:
        place = packet.place
        assert place is not None
        if place.frame == 0:
            self.packets = []
        newest = self.packets[-1] if self.packets else None
        if newest is not None and place == newest.place:
            assert same_packet(newest, packet)
            return
        assert place.frame == len(self.packets)
        if not packet.is_empty:
            self.packets.append(packet)


def same_packet(packet: TokenPacket, other: TokenPacket) -> bool:
    arrays = (
        (packet.regions, other.regions),
        (packet.relevance, other.relevance),
        (packet.host_pixels, other.host_pixels),
        (packet.superseded, other.superseded),
    )
    return (packet.stamp, packet.place, packet.overview) == (other.stamp, other.place, other.overview) and all(
        np.array_equal(a, b) for a, b in arrays
    )


class Run:
    """A stream, its allocator, and the model that is asked about it. Everything that must hold is checked.

    `exact`: each new version of a tile shows something else.
    """

    def __init__(self, options: AllocatorOptions, rows: int = ROWS, cols: int = COLS, *, exact: bool = True) -> None:
        self.exact = exact
        self.stream, self.allocator, self.model = PictureStream(), StreamAllocator(options), Model()
        self.picture, self.late_ns, self.number = scenery(rows, cols), 0, 0
        self.versions: list[tuple[TokenPacket, np.ndarray]] = []
        self.frame: FrameAllocation | None = None

    @property
    def group(self) -> GroupOfPictures:
        assert self.allocator.group is not None
        return self.allocator.group

    @property
    def newest(self) -> GroupFrame:
        assert self.group.newest is not None
        return self.group.newest

    def change(self, *tiles: tuple[int, int]) -> None:
        """Other pixels in these tiles with the next frame."""
        self.picture = self.picture.copy()
        for row, col in tiles:
            self.number += 1
            noise = np.random.default_rng(self.number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            self.picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] = noise

    def view(self) -> TextureView:
        view = self.stream.show(self.picture)
        view.stamp = replace(view.stamp, media_ns=view.stamp.media_ns + self.late_ns)
        return view

    def ask(self, budget: int | None = None) -> TokenPacket:
        """A packet of the next frame, which the model takes."""
        self.last_view = self.view()
        self.frame = self.allocator.allocate(self.last_view, budget=budget)
        packet = self.send()
        self.allocator.mark_answered()
        return packet

    def send(self) -> TokenPacket:
        assert self.frame is not None
        before = self.model.next_place
        preview = self.group.preview(self.last_view, self.frame)
        packet = self.group.packet(self.last_view, self.frame, before)
        assert preview.reason in (self.newest.reason, "") or before is None
        if preview.reason == self.newest.reason:
            np.testing.assert_array_equal(preview.regions, self.newest.regions)
        self.check(packet)
        if packet.place is not None:
            self.model.take(packet)
        return packet

    def check(self, packet: TokenPacket) -> None:
        frame, newest, options = self.frame, self.newest, self.group.options
        assert frame is not None
        assert packet.stamp == self.last_view.stamp
        assert len(packet.regions) <= max(frame.inputs.plan.tokens, frame.tokens)
        np.testing.assert_array_equal(packet.host_pixels, self.last_view.gather(packet.regions))
        assert len(packet.regions) == len(packet.relevance) == newest.appended_tokens
        if packet.place is None:
            assert len(packet.regions) > options.tokens
            assert same_packet(packet, packet_from(self.last_view, frame))
            return
        if packet.place.frame == 0:
            self.versions = []
            assert same_packet(replace(packet, place=None), packet_from(self.last_view, frame))
        self.versions = [
            (earlier_packet, tile_versions)
            for earlier_packet, tile_versions in self.versions
            if not earlier_packet.is_empty and earlier_packet.place != packet.place
        ]
        assert not packet.is_glance
        self.versions.append((packet, self.last_view.versions.frame))
        if self.exact:
            self.check_group()

    def check_group(self) -> None:
        newest, shape, now = self.newest, self.last_view.grid.shape, self.last_view.versions.frame
        packets = [packet for packet, _ in self.versions]
        assert {packet.stamp.epoch for packet in packets} == {self.last_view.stamp.epoch}
        lasted_ns = packets[-1].stamp.media_ns - packets[0].stamp.media_ns
        assert lasted_ns <= self.group.options.seconds * NS_PER_S
        tokens: list[tuple[tuple[slice, slice], tuple[int, ...], np.ndarray]] = []
        live: set[int] = set()
        for packet, versions in self.versions:
            assert {*packet.superseded.tolist()} <= live, "only live tokens can be superseded"
            live -= {*packet.superseded.tolist()}
            boxes = tile_boxes(packet.regions, shape).tolist()
            for region, (top, left, bottom, right) in zip(packet.regions.tolist(), boxes, strict=True):
                live.add(len(tokens))
                tokens.append(((slice(top, bottom), slice(left, right)), tuple(region), versions))
            areas = np.full(shape, np.inf)
            for number in live:
                tiles, region, _ = tokens[number]
                areas[tiles] = np.minimum(areas[tiles], area_of(region))
            for number in packet.superseded.tolist():
                tiles, region, token_versions = tokens[number]
                changed = (token_versions[tiles] != versions[tiles]).any()
                assert changed or (areas[tiles] < area_of(region)).all(), "a token goes for a reason"
        for number in live:
            tiles, _, token_versions = tokens[number]
            np.testing.assert_array_equal(token_versions[tiles], now[tiles], "a token shows the picture as it is")
        regions = [tokens[number][1] for number in sorted(live) if number >= packets[0].overview]
        assert len({*regions}) == len(regions), "a region is shown twice"
        assert (len(tokens), len(live)) == (len(newest.regions), newest.held_tokens)
        assert newest.held_tokens <= self.group.options.tokens
        assert len(newest.regions) <= GROUP_GROWTH * newest.held_tokens
        np.testing.assert_array_equal(np.isfinite(areas), newest.areas <= 12)
        np.testing.assert_array_equal(areas[np.isfinite(areas)], newest.areas[newest.areas <= 12])
        ages = [since for packet in packets for since in [packet.stamp.media_ns] * len(packet.regions)]
        assert newest.shown_ns.tolist() == ages
        np.testing.assert_array_equal(newest.regions, np.concatenate([packet.regions for packet in packets]))
        assert newest.states.count("new") == newest.appended_tokens
        assert newest.states.count("superseded") == newest.superseded_tokens


def area_of(region: tuple[int, ...]) -> int:
    return sum((region[0], region[0]) if region[0] < 6 else SHAPES[region[0]])


SHAPES = {6: (0, 1), 7: (0, 2), 8: (1, 2), 9: (0, 3), 10: (1, 0), 11: (2, 0), 12: (2, 1), 13: (3, 0)}


def options(budget: int = 10, memory: GroupOptions | None = None, **fields: object) -> AllocatorOptions:
    return AllocatorOptions(budget=budget, memory=memory or GroupOptions(), **fields)  # type: ignore[arg-type]


def question(text: str) -> QueryEmbedding:
    return QueryEmbedding(text, np.zeros((2, 8), np.float32), "m")


tiles = st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLS - 1))
actions = st.one_of(
    st.tuples(st.just("still"), st.none()),
    st.tuples(st.just("change"), st.lists(tiles, min_size=1, max_size=12)),
    st.tuples(st.sampled_from(["all", "cut", "size", "lost", "stale", "again", "skip", "fail", "glance"]), st.none()),
    st.tuples(st.just("budget"), st.integers(1, 40)),
    st.tuples(st.just("late"), st.integers(1, 40)),
    st.tuples(st.just("question"), st.integers(0, 2)),
    st.tuples(st.just("feedback"), st.integers(0, 1000)),
)


def act(run: Run, action: str, value: object) -> None:
    """One answer after something has happened."""
    budget = None
    if action == "change":
        run.change(*value)  # type: ignore[misc]
    elif action == "all":
        run.change(*np.ndindex(run.picture.shape[0] // 32, run.picture.shape[1] // 32))
    elif action in ("cut", "size"):
        run.stream.cut()
        if action == "size":
            run.picture = scenery(ROWS + run.number % 2, COLS + 2)
            run.number += 1
    elif action == "lost":
        run.model.packets = []
    elif action == "stale" and len(run.model.packets) > 1:
        run.model.packets.pop()
    elif action == "budget":
        budget = int(value)  # type: ignore[call-overload]
    elif action == "late":
        run.late_ns += int(value) * NS_PER_S  # type: ignore[call-overload]
    elif action == "question":
        run.allocator.set_query(question(f"what {value}?"))
    elif action == "feedback" and run.model.packets:
        run.allocator.apply_feedback(feedback(run, int(value)))  # type: ignore[call-overload]
    elif action == "skip":
        run.allocator.allocate(run.view())
    if action == "again" and run.frame is not None:
        run.send()
    elif action == "fail":
        run.last_view = run.view()
        run.frame = all_tokens(run.last_view)
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


@settings(max_examples=80)
@given(
    steps=st.lists(actions, min_size=1, max_size=14),
    tokens=st.sampled_from([20, 45, 70, 2048]),
    seconds=st.sampled_from([1.0, 30.0, 600.0]),
    budget=st.integers(1, 40),
    levels=st.booleans(),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_a_group_keeps_its_promises(
    steps: list[tuple[str, object]],
    tokens: int,
    seconds: float,
    budget: int,
    levels: bool,
    flags: tuple[bool, bool, bool],
) -> None:
    refine, wide, glances = flags
    glance = GlanceOptions("auto") if glances else None
    memory = GroupOptions(tokens, seconds, refine)
    run = Run(options(budget, memory, levels=levels, wide=wide and levels, glance=glance))
    run.allocator.set_query(question("what?"))
    for action, value in steps:
        act(run, action, value)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("budget", [1, 10, 34])
def test_a_still_scene_ends_with_all_tiles_shown_at_level_0(levels: bool, budget: int) -> None:
    run = Run(options(budget, levels=levels))
    requests = 0
    while (run.newest.areas if run.group.newest else np.ones(1)).any():
        assert requests == 0 or len(run.ask().regions) or run.newest.areas.any() == 0
        run.ask()
        requests += 1
        assert requests <= 2 * ROWS * COLS
    assert (run.newest.reason, len(run.ask().regions)) == ("", 0)
    assert run.newest.place == GroupPlace(1, len(run.model.packets))


@pytest.mark.parametrize("levels", [False, True])
def test_without_refinement_nothing_is_appended_to_a_still_scene(levels: bool) -> None:
    run = Run(options(10, GroupOptions(refine=False), levels=levels))
    first = run.ask()
    for seed in range(5):
        run.allocator.apply_feedback(feedback(run, seed))
        packet = run.ask()
        assert (packet.place, len(packet.regions)) == (GroupPlace(1, 1), 0)
    assert run.newest.held_tokens == len(first.regions)


def test_without_refinement_another_question_appends_what_it_wants() -> None:
    run = Run(options(10, GroupOptions(refine=False)))
    run.allocator.set_query(question("what?"))
    run.ask()
    run.allocator.set_query(question("where?"))
    run.allocator.apply_feedback(attention_to(run, (4, 6)))
    assert 0 < len(run.ask().regions) <= 10
    assert len(run.ask().regions) == 0


def attention_to(run: Run, *tiles: tuple[int, int]) -> Feedback:
    regions = np.array([(0, *tile) for tile in tiles], np.int32)
    return Feedback(run.newest.stamp, regions, np.ones(len(tiles), np.float32), np.ones(len(tiles), np.float32))


@pytest.mark.parametrize("refine", [False, True])
def test_a_tile_that_changed_is_shown_again_at_level_0(refine: bool) -> None:
    run = Run(options(ROWS * COLS, GroupOptions(refine=refine)))
    run.ask()
    run.change((2, 3), (4, 0))
    packet = run.ask()
    assert packet.place == GroupPlace(1, 1)
    assert sorted(map(tuple, packet.regions.tolist())) == [(0, 2, 3), (0, 4, 0)]
    assert run.newest.superseded_tokens == 2
    run.change((2, 3))
    assert [tuple(region) for region in run.ask().regions.tolist()] == [(0, 2, 3)]
    assert (run.newest.superseded_tokens, run.newest.held_tokens) == (3, ROWS * COLS)


def test_changed_regions_are_shown_before_refinement() -> None:
    run = Run(options(4, levels=True, explore=0.0))
    run.ask()
    for _ in range(20):
        run.ask()
    run.change((0, 0), (1, 1), (4, 6))
    assert {(0, 0, 0), (0, 1, 1), (0, 4, 6)} <= set(map(tuple, run.ask().regions.tolist()))


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
        ("late", 61, "age"),
        ("late", 59, ""),
        ("fail", None, "failed"),
        ("again", None, "first"),
    ],
)
def test_a_group_begins_for_a_reason(action: str, value: object, reason: str) -> None:
    assert began_after(Run(options()), action, value) == reason


def test_a_group_begins_when_time_goes_back() -> None:
    assert began_after(Run(options()), "late", -1) == "epoch"


def test_a_group_begins_where_more_is_superseded_than_valid() -> None:
    run = Run(options(ROWS * COLS))
    run.ask()
    all_tiles = tuple(np.ndindex(ROWS, COLS))
    run.change(*all_tiles)
    assert (run.ask().place, run.newest.reason) == (GroupPlace(1, 1), "")
    run.change(*all_tiles)
    assert (run.ask().place, run.newest.reason) == (GroupPlace(2, 0), "superseded")


def test_a_full_group_refines_no_further_and_a_new_question_begins_another() -> None:
    run = Run(options(10, GroupOptions(tokens=20)))
    run.ask()
    run.ask()
    assert len(run.ask().regions) == 0, "no room is left to refine"
    assert (run.newest.place, run.newest.held_tokens) == (GroupPlace(1, 2), 20)
    visible = {tuple(region) for region in run.newest.regions[:, 1:].tolist()}
    hidden = [tile for tile in np.ndindex(ROWS, COLS) if tile not in visible]
    run.change(*hidden)
    run.allocator.set_query(QueryEmbedding("another one", np.ones((2, 8), np.float32), "m"))
    assert (run.ask().place, run.newest.reason) == (GroupPlace(2, 0), "full")


def test_a_coarse_token_goes_once_smaller_ones_show_all_of_it() -> None:
    run = Run(options(8, levels=True, strategy="foveated", explore=0.0))
    run.ask()
    assert (run.newest.regions[:, 0] > 0).any()
    for _ in range(12):
        run.ask()
    assert (run.newest.held_tokens, run.newest.reason) == (ROWS * COLS, "")
    assert not (run.newest.areas > 0).any()


def test_a_frame_that_alone_exceeds_the_limit_is_complete_in_itself() -> None:
    run = Run(options(30, GroupOptions(tokens=29)))
    for _ in range(2):
        assert run.ask().place is None
        assert (run.newest.place, run.newest.reason, run.newest.next_place) == (None, "", None)
    assert run.ask(budget=10).place == GroupPlace(1, 0)


def test_a_group_is_never_numbered_as_one_that_the_model_holds() -> None:
    run = Run(options())
    run.last_view = run.view()
    frame = run.allocator.allocate(run.last_view)
    assert run.group.packet(run.last_view, frame, GroupPlace(7, 3)).place == GroupPlace(8, 0)


def test_the_same_frame_gives_the_same_packet_before_and_after_the_model_took_it() -> None:
    run = Run(options())
    run.ask()
    run.change((0, 0))
    first = run.ask()
    assert first.place == GroupPlace(1, 1)
    assert run.frame is not None
    for place in (GroupPlace(1, 1), GroupPlace(1, 2)):
        assert same_packet(run.group.packet(run.last_view, run.frame, place), first)


def test_a_glance_at_the_group_takes_no_tokens() -> None:
    run = Run(options(10, levels=True, glance=GlanceOptions("auto")))
    assert run.group.glance_packet(run.view(), all_tokens(run.view()), None) is None
    run.ask()
    look(run)
    assert run.newest.place is not None
    assert run.newest.place.group == 1


def test_feedback_of_a_glance_at_the_group_reaches_the_tiles_that_it_names() -> None:
    run = Run(options(10, levels=True, glance=GlanceOptions("auto")))
    run.ask()
    run.allocator.on_glance()
    run.allocator.apply_glance(attention_to(run, (4, 6), (4, 5)))
    frame = run.allocator.reallocate(run.last_view)
    assert frame.maps is not None
    assert frame.maps.prior is not None
    assert np.argwhere(frame.maps.prior[2].numpy() > 0).tolist() == [[4, 5], [4, 6]]
    assert not np.array_equal(overview_regions((ROWS, COLS), 2), [(0, 4, 6), (0, 4, 5)])


def test_tokens_of_the_group_are_explained() -> None:
    run = Run(options())
    run.ask()
    run.ask()
    assert run.frame is not None
    reasons = explain(run.frame, run.newest.regions)
    assert [(0, reason.row, reason.col) for reason in reasons] == [
        tuple(region) for region in run.newest.regions.tolist()
    ]
    assert sorted(reason.rank for reason in reasons) == list(range(1, 21))
    assert run.newest.states == ["shown"] * 10 + ["new"] * 10
    assert run.newest.shown_ns.tolist() == [0] * 10 + [FRAME_NS] * 10
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


@pytest.mark.parametrize(("noise", "stays"), [(5, True), (40, False)])
def test_noise_supersedes_nothing_and_a_change_does(noise: int, stays: bool) -> None:
    """Every tile has a new version, by noise that the texture notices; only what looks different is shown again."""
    run = Run(AllocatorOptions(budget=12, memory=GroupOptions(refine=False)), exact=False)
    run.ask()
    random, ground = np.random.default_rng(0), run.picture.astype(np.int16)
    for _ in range(4):
        run.picture = np.clip(ground + random.normal(0, noise, ground.shape), 0, 255).astype(np.uint8)
        run.ask()
        assert (run.newest.appended_tokens == 0) == stays


def test_a_slow_drift_is_shown_again_in_time() -> None:
    run = Run(AllocatorOptions(budget=12, memory=GroupOptions(refine=False)), exact=False)
    run.ask()
    ground = run.picture.astype(np.int16)
    token_counts = []
    for step in range(8):
        run.picture = np.clip(ground + 4 * step, 0, 255).astype(np.uint8)
        run.ask()
        token_counts.append(run.newest.appended_tokens)
    assert token_counts[:4] == [0, 0, 0, 0]
    assert token_counts[4] > 0
