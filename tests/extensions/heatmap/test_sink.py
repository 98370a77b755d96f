"""Drawing and its video: brightness of tiles, times, and a valid file however the run ends."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from stream.config import Config
from stream.errors import OutputError
from stream.events import Cut, Detection, Event, FrameMap
from stream.extensions.heatmap.section import HeatmapSection
from stream.extensions.heatmap.sink import CLOCK_HZ, DETECTIONS_DRAWN, HeatmapSink
from stream.media import AllocationOverlay, LabelledBox, MapLayer
from stream.monitor.health import RunMonitor
from stream.protocol.inspection import InspectedFrame, TileMap
from stream.protocol.pictures import PictureEndpoints, ViewedFrame
from stream.runtime.pictures import PictureThread
from stream.scenes import load_scene
from stream.sinks.drawing import (
    FOUND,
    LEAST_WIDTH_PX,
    MEMORY_KEY,
    NEW,
    OUTLINE_OPACITY,
    OUTLINES,
    SUPERSEDED,
    TRUTH,
    draw,
    draw_allocation,
    draw_boxes,
    drawn_size,
    strip_height,
)
from stream.transport import Transport
from tests.support.events import answer, detections, frame, glance
from tests.support.network import until
from tests.support.sections import opened_sinks

GREY = 128


def overlay(height: int = 96, width: int = 128, regions: list[tuple[int, int, int]] | None = None) -> AllocationOverlay:
    rows, cols = -(-height // 32), -(-width // 32)
    usual = [(0, 0, 0), (1, 0, 1)] if cols > 2 else [(0, 0, 0)]
    return AllocationOverlay(
        image=np.full((height, width, 3), GREY, dtype=np.uint8),
        regions=np.array(usual if regions is None else regions, dtype=np.int32).reshape(-1, 3),
        relevance=np.zeros((rows, cols), dtype=np.float32),
    )


class Slots:
    """Overlays by slot, each of which can be taken once."""

    picture_endpoints = PictureEndpoints()

    def __init__(self) -> None:
        self.waiting: dict[int, AllocationOverlay] = {}

    def put(self, item: AllocationOverlay) -> int:
        self.waiting[len(self.waiting)] = item
        return len(self.waiting) - 1

    def take_overlay(self, slot: int) -> AllocationOverlay:
        return self.waiting.pop(slot)


def first_picture(path: Path) -> npt.NDArray[np.uint8]:
    with av.open(str(path)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def test_finer_tiles_are_brighter_and_unseen_ones_darkest() -> None:
    picture = draw(overlay(regions=[(0, 2, 0), (1, 0, 1)]), "", "")
    tile = 32 * picture.shape[1] // 128
    middle = {
        place: picture[int((place[0] + 0.5) * tile), int((place[1] + 0.5) * tile), 1] for place in [(2, 0), (2, 3)]
    }
    coarse = picture[int(0.5 * tile), int(2.5 * tile), 1]
    assert middle[2, 0] == pytest.approx(GREY, abs=2)
    assert middle[2, 0] > coarse > middle[2, 3]


def test_tokens_of_a_memory_are_new_kept_or_superseded() -> None:
    item = replace(
        overlay(regions=[(0, 0, 0), (0, 2, 0), (0, 2, 3), (0, 2, 0)]),
        states=("shown", "superseded", "superseded", "new"),
    )
    picture = draw(item, "", "")
    tile = 32 * picture.shape[1] // 128
    middle = {
        place: picture[int((place[0] + 0.5) * tile), int((place[1] + 0.5) * tile)].astype(int)
        for place in [(0, 0), (2, 0), (2, 3), (0, 3)]
    }
    np.testing.assert_array_equal(middle[0, 0], middle[2, 0])
    np.testing.assert_array_equal(middle[2, 3], middle[0, 3], "what the picture was is not what is seen")
    lines = {place: picture[place[0] * tile + 1, int((place[1] + 0.5) * tile)].astype(int) for place in middle}
    expected = {(0, 0): [OUTLINES[0]], (2, 0): [SUPERSEDED, NEW], (2, 3): [SUPERSEDED]}
    for place, colours in expected.items():
        line = middle[place]
        for colour in colours:
            line = OUTLINE_OPACITY * np.array(colour) + (1 - OUTLINE_OPACITY) * line
        np.testing.assert_allclose(lines[place], line, atol=3)
    assert picture.shape == (drawn_size(128, 96)[1] + strip_height(640, MEMORY_KEY), 640, 3)


def test_a_wide_region_is_shown_along_its_line_and_outlined_as_such() -> None:
    """Columns of one pixel in rows of four tiles: single tiles show them, a wide region shows their grey."""
    plain = overlay(96, 128, [(7, 1, 0), *((0, row, col) for row in (0, 2) for col in range(4))])
    striped = plain.image.copy()
    striped[:, ::2] = 0
    picture = draw_allocation(AllocationOverlay(striped, plain.regions, plain.relevance))[..., 1].astype(int)
    tile = picture.shape[1] // 4
    patches = {
        row: picture[round((row + 0.3) * tile) : round((row + 0.7) * tile), tile + 8 : 2 * tile - 8] for row in (0, 1)
    }
    assert np.ptp(patches[1]) < 20 < np.ptp(patches[0])
    bare = draw_allocation(AllocationOverlay(plain.image, plain.regions[:1], plain.relevance))[..., 1].astype(int)
    edge, middle = bare[tile], bare[round(1.5 * tile)]
    assert np.ptp(edge[4:-4]) < 5, "the upper edge runs through"
    assert np.ptp(middle[tile - 8 : tile + 8]) < 5, "no edge between the region's tiles"


def test_high_relevance_is_tinted() -> None:
    plain = overlay(regions=[(3, 0, 0)])
    relevance = plain.relevance.copy()
    relevance[0, 3] = 0.2
    picture, untinted = (
        draw(AllocationOverlay(plain.image, plain.regions, r), "", "") for r in (relevance, plain.relevance)
    )
    changed = np.abs(picture.astype(int) - untinted).max(axis=2)
    assert changed[40, -40] > 20
    assert changed[-40, 40] == 0


def test_caption_and_note_stand_below_the_picture_and_cover_nothing_of_it() -> None:
    bare, captioned = draw(overlay(), "", ""), draw(overlay(), "a very long caption " * 8, "64 of 240")
    rows = np.flatnonzero((bare != captioned).any(axis=(1, 2)))
    height = drawn_size(128, 96)[1]
    assert rows.min() >= height
    assert rows.max() > height + 40
    np.testing.assert_array_equal(captioned[:height], draw_allocation(overlay()))


@pytest.mark.parametrize("grey", [0, 128, 255])
def test_outlines_are_seen_on_any_picture(grey: int) -> None:
    """At the edge of a sharp tile, one of the lines differs from the picture below."""
    plain = overlay(regions=[(0, 1, 1), (0, 1, 2)])
    picture = draw_allocation(AllocationOverlay(np.full_like(plain.image, grey), plain.regions, plain.relevance))
    tile = 32 * picture.shape[1] // 128
    across = picture[tile + tile // 2, 2 * tile - 6 : 2 * tile + 6].astype(int)
    assert np.abs(across - grey).max() > 70


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(1920, 1080, (1280, 720)), (161, 121, (644, 484)), (640, 360, (640, 360)), (1, 1, (640, 640)),
     (5000, 3, (1280, 2)), (1083, 721, (1084, 720))],
)  # fmt: skip
def test_any_size_is_drawn_at_the_promised_size_with_even_sides(width: int, height: int, size: tuple[int, int]) -> None:
    item = overlay(height, width)
    assert draw_allocation(item).shape[1::-1] == drawn_size(width, height) == size
    picture = draw(item, "caption", "note")
    width_px = max(LEAST_WIDTH_PX, drawn_size(width, height)[0])
    assert picture.shape == (drawn_size(width, height)[1] + strip_height(width_px), width_px, 3)
    assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (3, 640), (640, 2)])
def test_a_tiny_frame_is_drawn_in_little_memory(height: int, width: int) -> None:
    """Its tile extends far beyond the frame, and would be enlarged by the same factor."""
    drawn_bytes = 3 * 640 * 640
    tracemalloc.start()
    try:
        draw(overlay(height, width), "caption", "note")
        assert tracemalloc.get_traced_memory()[1] < 12 * drawn_bytes
    finally:
        tracemalloc.stop()


def test_the_video_keeps_the_frames_times_through_a_change_of_size(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "out.mp4"
    sink = HeatmapSink(str(path), lambda: slots)
    times_s = [0.0, 0.04, 0.5, 0.5, 2.0]
    for index, at_s in enumerate(times_s):
        item = overlay() if index < 3 else overlay(64, 320)
        sink.write(frame(index, at_s, slot=slots.put(item)))
    sink.write(frame(9, 3.0, slot=None))
    sink.close()
    sink.close()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        shown_s = [float(picture.time) for picture in container.decode(stream)]
    assert shown_s == pytest.approx([0.0, 0.04, 0.5, 0.5 + 1 / CLOCK_HZ, 2.0], abs=1e-6)


def test_an_answer_stands_under_the_frame_that_it_is_about(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "out.mp4"
    sink = HeatmapSink(str(path), lambda: slots)
    sink.write(frame(0, 0.0, slot=slots.put(overlay())))
    sink.write(answer(0.0, "a long caption that is easily seen at the bottom"))
    sink.close()
    picture = first_picture(path)
    bare = draw(overlay(), "", "64 of 240 tokens · 0:00.0")
    assert np.abs(picture.astype(int) - bare)[-80:, 20:400].max() > 90


def test_a_frame_is_drawn_as_it_was_allocated_after_a_glance(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "out.mp4"
    sink = HeatmapSink(str(path), lambda: slots)
    sink.write(frame(0, 0.0, slot=slots.put(overlay())))
    anew = overlay(regions=[(0, 2, 3)])
    sink.write(glance(0.0, slot=slots.put(anew)))
    sink.write(glance(0.0))
    sink.close()
    assert not slots.waiting
    with av.open(str(path)) as container:
        (picture,) = (video_frame.to_ndarray(format="rgb24") for video_frame in container.decode(video=0))
    after, before = (draw(item, "", "64 of 240 tokens · 0:00.0").astype(int) for item in (anew, overlay()))
    assert np.abs(picture - after).mean() < np.abs(picture - before).mean() / 4


def test_an_overview_is_shown_coarse_and_has_no_outlines() -> None:
    two_regions = overlay(regions=[(2, 0, 0), (0, 1, 1)])
    marked, plain = draw_allocation(two_regions), draw_allocation(replace(two_regions, overview=1))
    tile = marked.shape[1] // 4
    edge = np.abs(marked.astype(int) - plain).max(axis=2)
    assert edge[:2, tile // 2].max() > 20, "the outline of a region all over the frame"
    assert edge[tile + 1 : 2 * tile - 1, tile + 1 : 2 * tile - 1].max() == 0


def test_drawn_frames_can_be_played_after_the_program_is_killed(tmp_path: Path) -> None:
    """The file on the disk while the sink is open is what `kill -9` leaves."""
    slots, path, killed = Slots(), tmp_path / "out.mp4", tmp_path / "killed.mp4"
    sink = HeatmapSink(str(path), lambda: slots)
    readable = []
    for index in range(6):
        sink.write(frame(index, index / 25, slot=slots.put(overlay())))
        killed.write_bytes(path.read_bytes())
        if index >= 2:
            with av.open(str(killed)) as container:
                readable.append(sum(1 for _ in container.decode(video=0)))
    sink.close()
    assert readable == [1, 2, 3, 4], "the newest frame is not drawn yet, and the one before it not whole"


@pytest.mark.parametrize("name", ["out.mp4", "seen.png"])
def test_a_run_without_frames_leaves_no_file(tmp_path: Path, name: str) -> None:
    HeatmapSink(str(tmp_path / name), Slots).close()
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_is_missing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "open", Mock(side_effect=ValueError("no libx264 here")))
    slots = Slots()
    sink = HeatmapSink(str(tmp_path / "out.mp4"), lambda: slots)
    sink.write(frame(0, 0.0, slot=slots.put(overlay())))
    with pytest.raises(OutputError, match=r"cannot write .*out\.mp4.*no libx264"):
        sink.close()


def test_a_png_holds_the_last_frame_with_its_answer(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "seen.PNG"
    sink = HeatmapSink(str(path), lambda: slots)
    sink.write(frame(0, 0.0, slot=slots.put(overlay(64, 64))))
    sink.write(answer(0.0, "a cat"))
    last = overlay()
    sink.write(frame(1, 0.1, slot=slots.put(last)))
    sink.close()
    sink.close()
    picture = first_picture(path)
    assert np.array_equal(picture, draw(last, "a cat", "64 of 240 tokens · 0:00.1"))


def test_a_png_that_cannot_be_written_any_more_is_one_line(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "seen.png"
    sink = HeatmapSink(str(path), lambda: slots)
    sink.write(frame(0, 0.0, slot=slots.put(overlay())))
    path.unlink()
    path.mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        sink.close()


def layer(name: str, weight: float | None = None) -> MapLayer:
    values = np.zeros((3, 4), np.float32)
    values[0, 3] = 0.5
    return MapLayer(name, values, weight)


def test_each_layer_has_a_picture_below_the_frame_that_is_bright_where_the_map_is_high() -> None:
    bare, item = overlay(), replace(overlay(), layers=(layer("information", 0.25), layer("motion")))
    picture, without = draw(item, "caption", ""), draw(bare, "caption", "")
    assert picture.shape[1] == without.shape[1]
    height = drawn_size(128, 96)[1]
    np.testing.assert_array_equal(picture[:height], without[:height])
    maps = picture[height : height + picture.shape[0] - without.shape[0]].astype(int)
    half = maps.shape[1] // 2
    for left in (0, half):
        upper_row = maps[40:60, left : left + half]
        assert upper_row[:, -40:-10].mean() > upper_row[:, 10:40].mean() + 60


def test_more_layers_than_fit_beside_each_other_go_into_another_row() -> None:
    sizes = [
        draw(replace(overlay(), layers=tuple(layer(str(n)) for n in range(count))), "", "").shape for count in (4, 5)
    ]
    assert sizes[0][1] == sizes[1][1]
    assert sizes[1][0] > sizes[0][0] + 60
    assert sizes[1][0] % 2 == 0


def test_objects_of_a_drawn_scene_are_outlined(tmp_path: Path) -> None:
    scene, path = load_scene("static"), tmp_path / "seen.png"
    slots = Slots()
    sink = HeatmapSink(str(path), lambda: slots, scene="scene:static")
    image = scene.render(0)
    rows, cols = -(-image.shape[0] // 32), -(-image.shape[1] // 32)
    empty = AllocationOverlay(np.zeros_like(image), np.zeros((0, 3), np.int32), np.zeros((rows, cols), np.float32))
    sink.write(frame(0, 0.0, slot=slots.put(empty)))
    sink.close()
    picture = first_picture(path)
    size = drawn_size(image.shape[1], image.shape[0])
    thing = scene.facts(0).things[0]
    left, top, right, bottom = (
        round(edge * side / side_px)
        for edge, side, side_px in zip(thing.box_px(), size * 2, (640, 384) * 2, strict=True)
    )
    green = (picture[..., 1].astype(int) - picture[..., 0]) > 60
    for row, col in ((bottom, (left + right) // 2), ((top + bottom) // 2, left), ((top + bottom) // 2, right)):
        assert green[row - 2 : row + 3, col - 2 : col + 3].any()
    assert not green[(top + bottom) // 2, (left + right) // 2]


@pytest.mark.parametrize("truth", [False, True])
def test_ground_truth_is_drawn_only_on_request_and_labelled(truth: bool, tmp_path: Path) -> None:
    path, slots = tmp_path / "seen.png", Slots()
    image = np.zeros((384, 640, 3), np.uint8)
    empty = AllocationOverlay(image, np.zeros((0, 3), np.int32), np.zeros((12, 20), np.float32))
    config = Config(source="scene:static", heatmap=HeatmapSection(file=str(path), truth=truth))
    monitor = RunMonitor(config)
    monitor.followed_run = lambda: slots  # type: ignore[assignment, return-value, method-assign]
    (sink,) = opened_sinks(config, monitor)
    sink.write(frame(0, 0.0, slot=slots.put(empty)))
    sink.close()
    picture = first_picture(path)[:384].astype(int)
    green = (picture[..., 1] - picture[..., 0]) > 60
    assert green.any() == green[:20, :100].any() == truth, "boxes, and their legend in the corner"


def test_a_live_frame_is_drawn_from_the_picture_that_comes_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Events of frames arrive unasked; each picture is requested once the one before has been drawn."""
    path, endpoint = tmp_path / "out.mp4", f"ipc://{tmp_path}/heatmap"
    slots = Slots()
    slots.picture_endpoints = PictureEndpoints(heatmap=endpoint)
    sink = HeatmapSink(str(path), lambda: slots, ("information",))
    thread = PictureThread(transport := Transport(), endpoint)
    sink.write(frame(0, 0.0))
    for index in (0, 3, 4):
        until(lambda: thread.exchange.request is not None)
        request = thread.exchange.request
        assert request is not None
        assert request.inspect is not None
        assert request.inspect.maps
        thread.exchange.put(viewed(index))
        if index:
            sink.write(frame(index, index / 10))
    until(lambda: thread.exchange.request is not None)
    sink.write(frame(5, 0.5))
    sink.write(answer(0.4, "a long caption that is easily seen at the bottom"))
    sink.close()
    assert "heat map: 3 of 4 frames drawn; the others came while one was being drawn" in caplog.text
    thread.stop()
    transport.close()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pictures = [
            (float(video_frame.time), video_frame.to_ndarray(format="rgb24"))
            for video_frame in container.decode(stream)
        ]
    assert [at_s for at_s, _ in pictures] == pytest.approx([0.0, 0.3, 0.4], abs=1e-4)
    bare = draw(replace(overlay(), layers=(layer("information", 1.0),)), "", "64 of 240 tokens · 0:00.4")
    assert pictures[-1][1].shape == bare.shape
    assert np.abs(pictures[-1][1].astype(int) - bare)[-80:, 20:400].max() > 90, "the caption"


def test_a_live_heat_map_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "open", Mock(side_effect=ValueError("no libx264 here")))
    endpoint, slots = f"ipc://{tmp_path}/heatmap", Slots()
    slots.picture_endpoints = PictureEndpoints(heatmap=endpoint)
    sink = HeatmapSink(str(tmp_path / "out.mp4"), lambda: slots)
    thread = PictureThread(transport := Transport(), endpoint)
    sink.write(frame(0, 0.0))
    sink.write(frame(1, 0.1))
    for index in (0, 1):
        until(lambda: thread.exchange.request is not None)
        thread.exchange.put(viewed(index))

    def failed() -> bool:
        try:
            sink.write(frame(2, 0.2))
        except OutputError as error:
            return "no libx264" in str(error)
        return False

    until(failed)
    with pytest.raises(OutputError, match="no libx264"):
        sink.close()
    thread.stop()
    transport.close()


def viewed(index: int) -> ViewedFrame:
    """Return a requested frame with its maps, as the stage provides it."""
    item = overlay()
    maps = {"information": TileMap("scores", layer("").values, 0.0, 1.0)}
    inspected = InspectedFrame(
        frame_index=index, capture_ns=1, media_ns=0, tokens=2, width_px=128, height_px=96, rows=3, cols=4, overview=0,
        regions=item.regions, strategy="mixed", maps=maps, weights={"information": 1.0}, images={0: item.image},
    )  # fmt: skip
    frame_map = FrameMap(rows=3, cols=4, relevance=bytes(12), regions=b"")
    return ViewedFrame(index, 1, 0, 2, frame_map, {}, {}, inspected)


FOUND_LINE = np.array(FOUND.line)


def near(picture: npt.NDArray[np.uint8], colour: npt.NDArray[np.integer], tolerance: int = 60) -> npt.NDArray[np.bool_]:
    """Pixels of about this colour, bool [H, W]; H.264 halves the resolution of colours."""
    return (np.abs(picture.astype(int) - colour) < tolerance).all(axis=2)


def test_boxes_of_an_answer_are_drawn_from_its_frame_until_the_next_answer(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "a.mp4"
    sink = HeatmapSink(str(path), lambda: slots)
    box, size = Detection(label="<b>a cat</b>\x1b[31m", box=[32.0, 32.0, 96.0, 64.0]), (128, 96)
    following: dict[int, list[Event]] = {
        1: [answer(0.1, '[{"bbox_2d": [250, 333, 750, 666], "label": "a cat"}]'), detections(0.1, box, size=size)],
        3: [answer(0.3, "nothing new")],
        4: [
            detections(0.4, Detection(label="", point=[64.0, 48.0]), size=size),
            Cut(frame_index=5, pts_s=0.5, score=1.0),
        ],
    }
    for index in range(6):
        sink.write(frame(index, index / 10, slot=slots.put(overlay())))
        for event in following.get(index, []):
            sink.write(event)
    sink.close()
    with av.open(str(path)) as container:
        frames = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
    scale = 640 / 128
    edge = (slice(round(40 * scale), round(56 * scale)), slice(round(32 * scale) - 2, round(32 * scale) + 3))
    has_box = [bool(near(picture[edge], FOUND_LINE).any()) for picture in frames]
    assert has_box == [False, True, True, False, False, False]
    middle = (slice(round(48 * scale) - 3, round(48 * scale) + 3), slice(round(64 * scale) - 3, round(64 * scale) + 3))
    assert [bool(near(picture[middle], FOUND_LINE).all()) for picture in frames] == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]


def test_labels_stay_inside_the_picture_and_the_truth_has_another_colour_than_an_answer() -> None:
    boxes = tuple(LabelledBox("a long label " * 3, x, y, x + 0.1, y + 0.1) for x in (0.0, 0.9) for y in (0.2, 0.9))
    plain = draw_boxes(np.zeros((480, 640, 3), np.uint8), (), TRUTH)
    answer_picture = draw_boxes(plain, boxes, FOUND)
    assert near(answer_picture, np.array(TRUTH.line), 90).sum() == near(plain, np.array(TRUTH.line), 90).sum() > 50
    assert near(answer_picture, FOUND_LINE).sum() > 1000


def test_only_some_boxes_are_drawn(tmp_path: Path) -> None:
    slots = Slots()
    sink = HeatmapSink(str(tmp_path / "a.png"), lambda: slots)
    corner_boxes = [Detection(label="", box=[0.0, 0.0, 8.0, 8.0])] * DETECTIONS_DRAWN
    sink.write(frame(0, 0.0, slot=slots.put(overlay())))
    sink.write(detections(0.0, *corner_boxes, Detection(label="", box=[64.0, 32.0, 96.0, 64.0]), size=(128, 96)))
    sink.close()
    picture = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    assert near(picture[30:45, :45], FOUND_LINE).any()
    assert not near(picture[200:260, 300:500], FOUND_LINE).any()
