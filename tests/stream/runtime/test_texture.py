"""Live texture of a run in threads: drawn from while the run goes on; the example program with a separate source."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.backends.gl.device import GlDevice
from arr_coc.errors import StoreError
from arr_coc.texture.store.base import Backend, DrawnTexture
from scripts import ar_overlay
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, PipelineConfig, TextureConfig
from stream.events import FrameReady
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.support.runs import config as live_config
from tests.support.runs import open_supervised
from tests.support.stores import require
from tests.support.video import make_video, moving_square

LOADER = "tests.support.answer_models:FakeAnswerModel"


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return make_video(tmp_path / "square.mp4", list(moving_square(12, 128, 96)), 10)


def config_of(source: Path | str, backend: Backend) -> Config:
    return Config(
        source=str(source),
        texture=TextureConfig(backend=backend),
        allocate=AllocateConfig(budget=6),
        answer=AnswerConfig(every_s=0.3),
        pipeline=PipelineConfig(single_process=True),
    )


def opened(source: Path, backend: Backend = "gl", *, maps: bool = False) -> Run:
    return run_in_threads(config_of(source, backend), model_loader=LOADER, maps=maps)


def level0(device: GlDevice, texture: DrawnTexture) -> npt.NDArray[np.uint8]:
    """What OpenGL draws from: uint8 [height, width, 3]."""
    gl, height, width = device.library.gl, texture.grid.padded_height_px, texture.grid.padded_width_px
    out = np.empty((height, width, 4), np.uint8)
    gl.glGetTextureImage(texture.name, 0, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, out.nbytes, out)
    return out[..., :3]


def test_a_program_draws_the_frames_of_a_run_that_goes_on(video: Path) -> None:
    require("gl")
    run = opened(video)
    with pytest.raises(StoreError, match="holds no frame yet"), run.texture.drawing():
        pass
    device, frame_indices = run.texture.gl_device, []
    for event in run.run():
        if not isinstance(event, FrameReady):
            continue
        with device.current(), run.texture.drawing() as texture, run.texture.lease() as view:
            np.testing.assert_array_equal(level0(device, texture), view.read(0))
            assert texture.stamp == view.stamp
        assert texture.stamp.frame_index >= event.frame_index, "the newest"
        frame_indices.append(texture.stamp.frame_index)
    assert frame_indices == sorted(frame_indices)
    assert frame_indices[-1] == 11
    with pytest.raises(StoreError, match="the texture is closed"), run.texture.drawing():
        pass


def test_a_texture_of_another_backend_is_not_drawn_from(video: Path) -> None:
    run = opened(video, "cpu")
    events = run.run()
    with closing(events):
        next(event for event in events if isinstance(event, FrameReady))
        with pytest.raises(StoreError, match="stored by cpu"), run.texture.drawing():
            pass
        with pytest.raises(StoreError, match="backend = gl, not cpu"):
            _ = run.texture.gl_device
        with run.texture.lease() as view:
            assert view.read(0).shape == (96, 128, 3)


def test_a_run_in_processes_has_no_texture_here(video: Path) -> None:
    run = open_supervised(settings=live_config(str(video)))
    try:
        with pytest.raises(StoreError, match="in its frame process; open the run with run_in_threads"):
            _ = run.texture
    finally:
        run.close()


@pytest.mark.parametrize("maps", [True, False])
def test_frames_come_with_their_regions_if_a_program_asks_for_them(video: Path, maps: bool) -> None:
    frames = [event for event in opened(video, "cpu", maps=maps).run() if isinstance(event, FrameReady)]
    assert {frame.map is not None for frame in frames} == {maps}
    if maps:
        assert {len(frame.map.regions) // 6 for frame in frames if frame.map is not None} == {6}


def test_the_example_draws_a_live_run_into_a_video_and_a_picture(video: Path, tmp_path: Path) -> None:
    require("gl")
    film, image_path = tmp_path / "ar.mp4", tmp_path / "ar.png"
    pictures = ar_overlay.draw_run(config_of(video, "cpu"), str(film), (320, 280), LOADER)
    with av.open(str(film)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == pictures > 0
    times = [frame.time for frame in frames]
    assert times == sorted(set(times))
    assert {(frame.width, frame.height) for frame in frames} == {(320, 280)}
    ar_overlay.draw_run(config_of(video, "cpu"), str(image_path), (320, 280), LOADER)
    picture = cv2.imread(str(image_path))
    assert picture.shape == (280, 320, 3)
    last = frames[-1].to_ndarray(format="bgr24").astype(int)
    assert np.abs(picture.astype(int)[:120] - last[:120]).mean() < 40, "of the same run"


def test_the_example_takes_the_addresses_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Config, str]] = []
    monkeypatch.setattr(ar_overlay, "draw_run", lambda config, out: calls.append((config, out)) or 3)
    ar_overlay.main(["0", "--out", "a.mp4", "--frames", "9", "--query", "where?", "--budget", "7"])
    ((config, out),) = calls
    assert (config.source, config.answer.query, config.allocate.budget, out) == ("0", "where?", 7, "a.mp4")
    assert config.capture == CaptureConfig(max_frames=9)
    assert capsys.readouterr().out == "a.mp4: 3 pictures of 960x600\n"


@pytest.mark.parametrize(("source", "reason"), [("scene:nowhere", "nowhere"), ("no-such-file.mp4", "no-such-file.mp4")])
def test_the_example_says_in_one_line_what_is_wrong(source: str, reason: str, tmp_path: Path) -> None:
    require("gl")
    with pytest.raises(SystemExit, match=f"ar_overlay: .*{reason}"):
        ar_overlay.main([source, "--out", str(tmp_path / "a.png")])
    assert not (tmp_path / "a.png").exists()
