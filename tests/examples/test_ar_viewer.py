"""The viewer of examples/ar_viewer.py: what it draws on software OpenGL, without a window, and the poses it takes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.backends.gl.device import find_device
from arr_coc.types import TileGrid, TileVersions
from stream.extensions.shared_texture.reader import SharedFrame
from tests.support.stores import require

SIZE = (160, 120)
FILE = Path(__file__).resolve().parents[2] / "examples" / "ar_viewer.py"


@pytest.fixture
def viewer() -> Iterator[ModuleType]:
    """The example, with a context of OpenGL and a target to draw into."""
    require("gl")
    device = find_device()
    gl = device.library.gl  # loaded without a screen before the example imports OpenGL
    spec = importlib.util.spec_from_file_location("ar_viewer", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with device.current():
        target = gl.glGenFramebuffers(1)
        buffers = gl.glGenRenderbuffers(2)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, target)
        kinds = ((gl.GL_RGBA8, gl.GL_COLOR_ATTACHMENT0), (gl.GL_DEPTH_COMPONENT24, gl.GL_DEPTH_ATTACHMENT))
        for buffer, (form, place) in zip(buffers, kinds, strict=True):
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, buffer)
            gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, form, *SIZE)
            gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, place, gl.GL_RENDERBUFFER, buffer)
        yield module
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, 0)
        for state in (gl.GL_DEPTH_TEST, gl.GL_BLEND):
            gl.glDisable(state)
        gl.glUseProgram(0)
        gl.glBindVertexArray(0)
        gl.glDeleteFramebuffers(1, [target])
        gl.glDeleteRenderbuffers(2, buffers)


def frame_of(pixels: npt.NDArray[np.uint8], changed: npt.NDArray[np.bool_], regions: list[list[int]]) -> SharedFrame:
    """A frame whose picture is all of its tiles."""
    grid = TileGrid.of(*pixels.shape[:2])
    return SharedFrame(
        frame_index=0,
        media_s=0.0,
        capture_ns=0,
        grid=grid,
        versions=TileVersions(1, np.zeros(grid.shape, np.int64)),
        changed=changed,
        pixels=pixels,
        relevance=np.full(grid.shape, 255, np.uint8),
        regions=np.array(regions, np.int16).reshape(-1, 3),
        overview=0,
    )


def drawn(viewer: ModuleType, scene: object, pose: object, answer: str = "") -> npt.NDArray[np.uint8]:
    scene.draw(SIZE, pose, answer)  # type: ignore[attr-defined]
    picture: npt.NDArray[np.uint8] = viewer.read_pixels(SIZE).copy()
    return picture


def test_picture_tiles_and_answer_are_drawn_over_the_pose(viewer: ModuleType) -> None:
    pose = viewer.Pose()
    scene = viewer.Scene()
    assert drawn(viewer, scene, pose).max() < 30, "nothing before the first frame"
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[:48] = 200, 0, 0  # red above blue
    pixels[48:] = 0, 0, 200
    scene.upload(frame_of(pixels, np.ones((3, 4), bool), []))
    plain = drawn(viewer, scene, pose)
    above, below = plain[SIZE[1] // 2 - 15, SIZE[0] // 2], plain[SIZE[1] // 2 + 15, SIZE[0] // 2]
    np.testing.assert_allclose(above, (90, 0, 0), atol=2)
    np.testing.assert_allclose(below, (0, 0, 90), atol=2)

    changed = np.zeros((3, 4), bool)
    changed[0, 1] = True
    pixels[:, :] = 0, 200, 0  # of which one tile is said to have changed
    scene.upload(frame_of(pixels, changed, []))
    partly = drawn(viewer, scene, pose)
    differs = (partly != plain).any(axis=2)
    assert 0 < differs.mean() < 1 / 8, "that tile"

    scene.upload(frame_of(pixels, changed, [[0, 1, 2]]))
    lifted = drawn(viewer, scene, pose)
    shown = (lifted != partly).any(axis=2)
    assert 0 < shown.mean() < 1 / 8, "the tile floats above the picture"
    assert (lifted[shown] == (255, 242, 26)).all(axis=1).any(), "with a border"

    pose.labels = [{"text": "{answer}", "at": [0.0, -0.3, 0.0]}]
    labelled = drawn(viewer, scene, pose, "a red circle")
    rows = np.flatnonzero((labelled != lifted).any(axis=(1, 2)))
    assert len(rows)
    assert rows.min() > SIZE[1] // 2, "below the picture's middle"
    assert labelled.min(axis=2).max() > 200, "white letters"

    pose.take(json.dumps({"position": [0, 0, 1.1], "orientation": [0, 1, 0, 0]}))
    assert drawn(viewer, scene, pose, "a red circle").max() < 30, "the eye looks away"


def test_a_matrix_and_a_quaternion_are_one_pose(viewer: ModuleType) -> None:
    turned, listed = viewer.Pose(), viewer.Pose()
    half = np.sqrt(0.5)
    turned.take(json.dumps({"position": [1, 2, 3], "orientation": [half, 0, 0, half], "fov_deg": 60}))
    listed.take(json.dumps({"matrix": [1, 0, 0, 1, 0, 0, -1, 2, 0, 1, 0, 3, 0, 0, 0, 1], "fov_deg": 60}))
    np.testing.assert_allclose(turned.camera(16, 9), listed.camera(16, 9), atol=1e-12)


@pytest.mark.parametrize(
    "line",
    [
        "left",
        "[]",
        '{"matrix": [1, 2]}',
        '{"matrix": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}',
        '{"position": [0, 0, 1], "orientation": [0, 0, 0, 0]}',
        '{"position": "here"}',
        '{"fov_deg": 0}',
        '{"labels": [{"text": "a"}]}',
        '{"labels": [{"text": "a", "at": [0, 0]}]}',
        '{"position": [0, 0, 9], "labels": 5}',
    ],
)
def test_a_line_that_is_no_pose_is_reported_and_changes_nothing(
    viewer: ModuleType, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pose = viewer.Pose()
    before = pose.camera(16, 9)
    pose.read([f"{line}\n"])
    np.testing.assert_array_equal(pose.camera(16, 9), before)
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("ar_viewer: no pose: ")
    assert error.endswith("; see docs/ar.md")
