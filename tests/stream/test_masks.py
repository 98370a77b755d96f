"""A masked part of the picture is in no output: each of them is read back.

Every output has an entry in `SHOWING`, if it shows pictures, or in `WORDS`, if it has none; a test fails for one
without. A run without the mask proves that the reader of an output would find the masked part there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
from PIL import Image

from arr_coc.texture.polygons import touched_samples
from arr_coc.video.picture_mask import PictureMask
from stream.clock import MonotonicClock
from stream.config import AnswerConfig, CaptureConfig, Config, OutputConfig
from stream.events import AskedPicture, Summary
from stream.extensions.api.section import ApiSection
from stream.extensions.heatmap.section import HeatmapSection
from stream.extensions.shadow.section import ShadowSection
from stream.monitor.health import RunMonitor
from stream.runtime.frame_stages import run_in_threads
from stream.sinks.types import sink_types
from stream.sources.aspect import PixelAspect
from stream.sources.factory import open_source
from stream.sources.fit import FrameFitter
from stream.sources.orientation import Orientation
from stream.sources.planes import to_planes
from tests.support import masked
from tests.support.api_server import FakeApiServer
from tests.support.masked import HIDDEN, RERUN, SECRET, RunOutputs, frames, secret_pixels
from tests.support.polygons import box_polygon
from tests.support.runs import open_supervised, watch
from tests.support.sections import opened_sinks
from tests.support.video import make_video

Reader = Callable[[RunOutputs], list[np.ndarray]]

SHOWING: dict[str, Reader] = {
    ".m3u8": masked.of_hls,
    ".mcap": masked.of_mcap,
    ".rosbag": masked.of_rosbag,
    ".rrd": masked.of_rerun_file,
    **{suffix: masked.of_film(suffix) for suffix in masked.FILMS},
    "record.folder": masked.of_record,
    "past.file": masked.of_remembered,
    "clips.folder": masked.of_clips,
    "web.address": masked.of_sent("web"),
    "microscope": masked.of_sent("microscope"),
    "mqtt.url": masked.of_sent("mqtt"),
    "robotics.foxglove": masked.of_sent("foxglove"),
    "shared_texture.socket": masked.of_sent("texture"),
    "model": masked.of_model,
    "events": masked.of_sent("events"),
}
"""Outputs with pictures, by suffix or key, and what stands between: the packets that the model gets, and the events, of
which each sink makes its pictures."""

WORDS: dict[str, Reader] = {
    ".vtt": masked.of_file("a.vtt"),
    ".srt": masked.of_file("a.srt"),
    ".jsonl": masked.of_file("a.jsonl"),
    "why.file": masked.of_file("why.jsonl"),
    "overlay.file": masked.of_file("now.txt"),
    "zeromq.publish": masked.of_sent("publish"),
    "zeromq.control": masked.of_sent("control"),
    "metrics.port": masked.of_sent("metrics_port"),
    "webhook.url": masked.of_sent("webhook"),
    "otlp.url": masked.of_sent("otlp"),
}
"""Outputs without pictures."""

HEAT_MAPS = (".mp4", ".png")
"""Suffixes of the heat map, whose own colours may be like the secret's: `test_a_heat_map_…` compares two secrets."""

FROM_EVENTS = {"rerun.address"}
"""Outputs that show what `events` shows, and whose file `.rrd` is read."""

COMMANDS = {""}
"""Outputs without a key: commands of matches, which get words."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """H.264, whose packets an HLS stream would copy."""
    return str(make_video(tmp_path_factory.mktemp("source") / "secret.mp4", frames(600), options={"g": "25"}))


@pytest.fixture(scope="module")
def plain(source: str, tmp_path_factory: pytest.TempPathFactory) -> RunOutputs:
    return masked.show(source, tmp_path_factory.mktemp("plain"), masked=False)


@pytest.fixture(scope="module")
def hidden(source: str, tmp_path_factory: pytest.TempPathFactory) -> RunOutputs:
    return masked.show(source, tmp_path_factory.mktemp("hidden"), masked=True)


def test_every_output_is_proved_here() -> None:
    """An output that is added needs a reader in SHOWING or WORDS, so that its pictures are looked at."""
    proved = {*SHOWING, *WORDS, *HEAT_MAPS, *FROM_EVENTS}
    outputs: set[str] = set()
    for sink in sink_types():
        outputs.update(sink.suffixes if sink.key in ("", "heatmap.file") and sink.suffixes else [sink.key])
    assert outputs <= proved | COMMANDS, "an output without a proof that it shows no masked pixel"


@pytest.mark.parametrize("name", SHOWING)
def test_no_output_shows_the_masked_part(name: str, plain: RunOutputs, hidden: RunOutputs) -> None:
    if name == ".rrd" and not RERUN:
        pytest.skip("no rerun-sdk, 700 MB: pip install 'arr-coc-stream[rerun]'")
    assert sum(map(secret_pixels, SHOWING[name](plain))) > 50, "the test would not see it"
    pictures = SHOWING[name](hidden)
    assert pictures
    assert [secret_pixels(picture) for picture in pictures] == [0] * len(pictures)


@pytest.mark.parametrize("name", WORDS)
def test_outputs_of_words_have_no_pictures(name: str, plain: RunOutputs, hidden: RunOutputs) -> None:
    assert WORDS[name](plain) == WORDS[name](hidden) == []


def heat(folder: Path, name: str, secret: tuple[int, int, int], *, is_masked: bool) -> list[np.ndarray]:
    """The pictures of a heat map over a source with this secret, which is coded without loss."""
    folder.mkdir()
    source = make_video(folder / "a.mkv", frames(12, secret), codec="ffv1", pixel_format="yuv420p")
    path = folder / name
    config = Config(
        source=str(source),
        answer=AnswerConfig(every_s=0.2),
        zones={"hidden": HIDDEN} if is_masked else {},
        heatmap=HeatmapSection(file=str(path), layers=("information", "now", "entropy", "motion")),
        pipeline={"single_process": True},  # type: ignore[arg-type]
    )
    run = run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel")
    monitor = RunMonitor(config)
    monitor.follow(run)
    (sink,) = opened_sinks(config, monitor)
    for event in run.run():
        sink.write(event)
    assert isinstance(event, Summary)
    sink.close()
    return masked.decode_video(path) if path.suffix == ".mp4" else masked.pictures_in(path.read_bytes())


@pytest.mark.parametrize("suffix", HEAT_MAPS)
def test_a_heat_map_is_the_same_whatever_is_masked(suffix: str, tmp_path: Path) -> None:
    secrets = {"magenta": SECRET, "green": (30, 220, 30)}
    for is_masked in (False, True):
        first, second = (
            heat(tmp_path / f"{name}-{is_masked}", f"heat{suffix}", secret, is_masked=is_masked)
            for name, secret in secrets.items()
        )
        assert len(first) == len(second) > 0
        same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert same == is_masked


@pytest.mark.parametrize("encode", ["sparse", "incremental", "prune", "weighted", "full"])
def test_the_model_gets_nothing_of_it_however_it_encodes(encode: str, source: str) -> None:
    """Whole frames included, and those of shadow checks."""
    answer = AnswerConfig.model_validate({"encode": encode, "every_s": 0.2})
    shadow = ShadowSection(every=None if encode == "full" else 1)
    for zones, is_visible in (({}, True), ({"hidden": HIDDEN}, False)):
        config = Config(
            source=source,
            capture=CaptureConfig(max_frames=12),
            answer=answer,
            shadow=shadow,
            zones=zones,
            pipeline={"single_process": True},  # type: ignore[arg-type]
        )
        masked.SEEN.clear()
        list(run_in_threads(config, model_loader="tests.support.masked:SeeingModel").run())
        assert len(masked.SEEN) >= 2
        assert bool(sum(map(secret_pixels, masked.SEEN))) == is_visible


def test_a_frame_process_masks_as_well(source: str) -> None:
    """The configuration travels there; the pictures come back in events."""
    for zones, is_visible in (({}, True), ({"hidden": HIDDEN}, False)):
        config = Config(
            source=source,
            capture=CaptureConfig(max_frames=6),
            answer=AnswerConfig(every_s=0.1),
            zones=zones,
            output=OutputConfig(paths=("not-opened.mcap",)),
        )
        run = watch(open_supervised(settings=config))
        pictures = [image for event in run.of(AskedPicture) for image in masked.pictures_in(event.jpeg)]
        assert pictures
        assert bool(sum(map(secret_pixels, pictures))) == is_visible


@pytest.mark.parametrize("picture", ["scaled", "composite", "parts"])
def test_a_server_with_an_api_gets_nothing_of_it(picture: str, source: str) -> None:
    for zones, is_visible in (({}, True), ({"hidden": HIDDEN}, False)):
        with FakeApiServer() as server:
            api = ApiSection.model_validate({"url": server.url, "picture": picture})
            config = Config(
                source=source,
                capture=CaptureConfig(max_frames=3),
                answer=AnswerConfig(encode="picture", every_s=0.2, model="m"),
                zones=zones,
                pipeline={"single_process": True},  # type: ignore[arg-type]
                api=api,
            )
            list(run_in_threads(config).run())
            pictures = [image[..., ::-1] for request in range(len(server.bodies)) for image in server.pictures(request)]
        assert pictures
        assert bool(sum(map(secret_pixels, pictures))) == is_visible


def still(path: Path, secret: tuple[int, int, int]) -> np.ndarray:
    """The first frame of a folder of pictures, or of an animation, with a secret in the middle, masked."""
    picture = np.full((128, 128, 3), 110, np.uint8)
    picture[32:96, 32:96] = secret
    image = Image.fromarray(picture)
    if path.suffix == ".webp":
        image.save(path, quality=90, save_all=True, append_images=[Image.fromarray(picture // 2)])
    else:
        image.save(path)
    address = path if path.suffix == ".webp" else path.parent
    with closing(open_source(str(address), CaptureConfig(), MonotonicClock())) as source:
        frame = next(iter(source.frames()))
    planes = PictureMask([box_polygon((0.25, 0.25, 0.75, 0.75))]).apply(frame.planes)
    return np.asarray(planes.planes[0])


@pytest.mark.parametrize(("name", "noise", "black"), [("a.png", 0, 65), ("a.jpg", 12, 81), ("a.webp", 12, 81)])
def test_pictures_whose_chroma_is_coarse_show_no_colour_of_it(
    name: str, noise: int, black: int, tmp_path: Path
) -> None:
    """What a lossy codec mixes within its blocks is left, which is little."""
    frames = []
    for number, secret in enumerate((SECRET, (30, 220, 30))):
        (tmp_path / str(number)).mkdir()
        frames.append(still(tmp_path / str(number) / name, secret).astype(int))
    assert np.abs(frames[0] - frames[1]).max() <= noise
    assert np.count_nonzero(frames[0][64, :, 0] < 30) == black


BOX = (0.26, 0.24, 0.77, 0.51)


def coded(pixel_format: str, size: tuple[int, int], turns: int, value: int) -> av.VideoFrame:
    """A frame of noise, whose samples that the box touches all have one value, once it is turned upright."""
    height, width = size
    frame, noise = av.VideoFrame(width, height, pixel_format), np.random.default_rng(1)
    components = {"rgb24": 3, "yuyv422": 2, "rgba": 4}.get(pixel_format, 1)
    for index, plane in enumerate(frame.planes):
        pairs = 2 if pixel_format == "nv12" and index else components
        wide = 2 if pixel_format == "gray10le" else pairs
        shape = plane.height, plane.line_size // wide, wide
        samples = np.ndarray(shape, np.uint8, buffer=plane)
        samples[:] = noise.integers(90, 160, shape)
        if pixel_format == "gray10le":
            samples[..., 1] = 1
        cols = plane.width if pixel_format != "yuyv422" else width
        step = round(height / plane.height) / height, round(width / cols) / width
        upright = touched_samples(box_polygon(BOX), np.rot90(samples[:, :cols, 0], turns).shape, _turned(step, turns))
        samples[:, :cols][np.rot90(upright, -turns)] = value
        if pixel_format == "gray10le":
            samples[..., 1] = 1
    return frame


def _turned(step: tuple[float, float], turns: int) -> tuple[float, float]:
    return (step[1], step[0]) if turns % 2 else step


@pytest.mark.parametrize(
    "capture",
    [
        {},
        {"size": "100x75"},
        {"size": "640x480"},
        {"size": "511x97"},
        {"size": "40x300"},
        {"fit": "resize"},
        {"max_tiles": 6},
        {"fit": "resize", "size": "320x320"},
        {"aspect": "3:1"},
        {"aspect": "1:2", "max_tiles": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "pixel_format",
    ["yuv420p", "yuv422p", "yuv444p", "yuv410p", "nv12", "gray", "gray10le", "rgb24", "yuva420p", "yuyv422"],
)
@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("size", [(96, 128), (95, 127)])
def test_no_size_or_form_mixes_the_masked_part_into_what_is_around(
    capture: dict[str, object], pixel_format: str, turns: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frames that differ in the whole masked part, up to its border, give the same planes."""
    monkeypatch.setattr(Orientation, "of", lambda _: Orientation(turns))
    config, mask = CaptureConfig.model_validate(capture), PictureMask([box_polygon(BOX)])
    stream, context = Mock(sample_aspect_ratio=None), Mock(sample_aspect_ratio=None)
    stream.container.format.name = "mpegts"
    fit, aspect = FrameFitter.of(config), PixelAspect(config.aspect, stream, context, config.max_pixels)
    first, second = (to_planes(coded(pixel_format, size, turns, value), fit, "frame", aspect) for value in (0, 255))
    assert not all(np.array_equal(a, b) for a, b in zip(first.planes, second.planes, strict=True))
    first, second = mask.apply(first), mask.apply(second)
    assert all(np.array_equal(a, b) for a, b in zip(first.planes, second.planes, strict=True))
    assert (first.planes[0] > 60).any(), "not all is black"
