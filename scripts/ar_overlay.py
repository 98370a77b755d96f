"""An AR program's view: drawn from the stream's own texture, in a separate OpenGL context.

    python -m scripts.ar_overlay [OUT.png] [--scene NAME] [--frames N]

The stream keeps its texture with the store `gl`. This program makes a second context that shares objects with the
store's, and draws the camera's picture as a tilted plane; above it float the regions that were chosen for the model,
the higher, the more relevant, each from the texture's level that the model is shown. No pixel leaves the GPU but the
picture that is saved. It runs on software OpenGL, too.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.ops.gl.device import GlDevice, open_device
from arr_coc.ops.gl.store import GlStore
from arr_coc.ops.regions import region_scales, tile_boxes
from arr_coc.ops.store.planes import PlaneFormat, Thresholds
from arr_coc.types import FrameStamp, TileGrid
from stream.scenes.catalogue import open_scene

Image = npt.NDArray[np.uint8]
Matrix = npt.NDArray[np.float32]

SIZE = (960, 480)
"""Width and height of the picture."""

LIFT = 0.16
"""Height of a floating region of relevance 1, in widths of the picture."""

BUDGET = 64

VERTEX = """#version 450
layout(location = 0) uniform mat4 camera;
layout(location = 1) uniform vec4 box;     // left, top, right, bottom, in [0, 1] of the texture
layout(location = 2) uniform float height;
layout(location = 3) uniform vec2 aspect;  // width and height of the plane
out vec2 place;
out vec2 corner;
void main() {
    corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
    place = mix(box.xy, box.zw, corner);
    gl_Position = camera * vec4((place.x - 0.5) * aspect.x, height, (place.y - 0.5) * aspect.y, 1.0);
}
"""

FRAGMENT = """#version 450
layout(binding = 0) uniform sampler2D picture;
layout(location = 4) uniform float level;
layout(location = 5) uniform float dim;
layout(location = 6) uniform vec3 border;
in vec2 place;
in vec2 corner;
out vec4 colour;
void main() {
    vec2 inside = min(corner, 1.0 - corner) / max(fwidth(corner), vec2(1e-6));
    bool edge = dim >= 1.0 && min(inside.x, inside.y) < 1.6;
    colour = vec4(edge ? border : textureLod(picture, place, level).rgb * min(dim, 1.0), 1.0);
}
"""


def camera_matrix(width: float, height: float) -> Matrix:
    """A camera that looks at the plane from before it and above: float32 [4, 4]."""
    eye, target, up = np.array([0.0, 1.05, 0.8]), np.array([0.0, 0.05, 0.0]), np.array([0.0, 1.0, 0.0])
    ahead = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(ahead, up) / np.linalg.norm(np.cross(ahead, up))
    above = np.cross(right, ahead)
    view = np.eye(4)
    view[:3, :3] = right, above, -ahead
    view[:3, 3] = -view[:3, :3] @ eye
    near, far, focal = 0.1, 10.0, 3.1
    lens = np.zeros((4, 4))
    lens[0, 0], lens[1, 1] = focal * height / width, focal
    lens[2, 2:] = (far + near) / (near - far), 2 * far * near / (near - far)
    lens[3, 2] = -1
    return np.asarray(lens @ view, np.float32)


class ArProgram:
    """A program of one's own, with a context that shares objects with the stream's `device`."""

    def __init__(self, device: GlDevice, size: tuple[int, int] = SIZE) -> None:
        self._device, self._size = device, size
        self._gl, self._calls = device.library.gl, device.library.calls
        self._context = device.make_context()
        with self._current():
            self._program = self._linked()
            self._target = self._framebuffer()
            self._shape = self._gl.glGenVertexArrays(1)
            self._sampler = self._smooth_sampler()

    def draw(self, name: int, grid: TileGrid, frame: FrameAllocation) -> Image:
        """The picture of a frame, uint8 [height, width, 3] RGB, from the texture `name` (`GlStore.drawing`)."""
        gl, (width, height) = self._gl, self._size
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._target)
        gl.glViewport(0, 0, width, height)
        gl.glClearColor(0.05, 0.06, 0.09, 1)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glEnable(gl.GL_DEPTH_TEST)
        gl.glUseProgram(self._program)
        gl.glBindVertexArray(self._shape)
        gl.glBindTextureUnit(0, name)
        gl.glBindSampler(0, self._sampler)
        gl.glUniformMatrix4fv(0, 1, True, camera_matrix(width, height))
        gl.glUniform2f(3, 1.0, grid.rows / grid.cols)
        self._quad((0, 0, 1, 1), 0.0, 0.0, 0.35, (0, 0, 0))
        for box, lift, level in sorted(_floating(grid, frame), key=lambda quad: quad[1]):
            self._quad(box, lift * LIFT, level, 1.0, (1.0, 0.45 + 0.5 * lift, 0.1))
        out = np.empty((height, width, 3), np.uint8)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        gl.glReadPixels(0, 0, width, height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, out)
        return np.ascontiguousarray(out[::-1])

    def picture(self, store: GlStore, frame: FrameAllocation) -> Image:
        """The newest frame of a store, drawn while its lease lasts."""
        with self._current(), store.drawing() as name:
            return self.draw(name, store.grid, frame)

    def close(self) -> None:
        """End the context."""
        self._calls.eglDestroyContext(self._device.display, self._context)

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._calls.eglMakeCurrent(self._device.display, None, None, self._context)
        try:
            yield
        finally:
            self._calls.eglMakeCurrent(self._device.display, None, None, None)

    def _quad(
        self, box: tuple[float, ...], height: float, level: float, dim: float, border: tuple[float, float, float]
    ) -> None:
        gl = self._gl
        gl.glUniform4f(1, *box)
        for location, value in ((2, height), (4, level), (5, dim)):
            gl.glUniform1f(location, value)
        gl.glUniform3f(6, *border)
        gl.glDrawArrays(gl.GL_TRIANGLE_STRIP, 0, 4)

    def _linked(self) -> int:
        gl = self._gl
        program = gl.glCreateProgram()
        for kind, source in ((gl.GL_VERTEX_SHADER, VERTEX), (gl.GL_FRAGMENT_SHADER, FRAGMENT)):
            shader = gl.glCreateShader(kind)
            gl.glShaderSource(shader, [source])
            gl.glCompileShader(shader)
            if not gl.glGetShaderiv(shader, gl.GL_COMPILE_STATUS):
                raise SystemExit(f"the driver does not compile a shader: {gl.glGetShaderInfoLog(shader)!r}")
            gl.glAttachShader(program, shader)
        gl.glLinkProgram(program)
        return int(program)

    def _framebuffer(self) -> int:
        gl, (width, height) = self._gl, self._size
        target, buffers = gl.glGenFramebuffers(1), gl.glGenRenderbuffers(2)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, target)
        kinds = ((gl.GL_RGBA8, gl.GL_COLOR_ATTACHMENT0), (gl.GL_DEPTH_COMPONENT24, gl.GL_DEPTH_ATTACHMENT))
        for buffer, (form, place) in zip(buffers, kinds, strict=True):
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, buffer)
            gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, form, width, height)
            gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, place, gl.GL_RENDERBUFFER, buffer)
        return int(target)

    def _smooth_sampler(self) -> int:
        """A separate sampler: the texture's parameters belong to the stream."""
        gl, name = self._gl, ctypes.c_uint()
        gl.glCreateSamplers(1, name)
        for parameter, value in (
            (gl.GL_TEXTURE_MIN_FILTER, gl.GL_NEAREST_MIPMAP_NEAREST),
            (gl.GL_TEXTURE_MAG_FILTER, gl.GL_NEAREST),
            (gl.GL_TEXTURE_WRAP_S, gl.GL_CLAMP_TO_EDGE),
            (gl.GL_TEXTURE_WRAP_T, gl.GL_CLAMP_TO_EDGE),
        ):
            gl.glSamplerParameteri(name, parameter, value)
        return int(name.value)


def _floating(grid: TileGrid, frame: FrameAllocation) -> Iterator[tuple[tuple[float, ...], float, float]]:
    """Each region as its box in [0, 1], how far it is lifted, in [0, 1], and the texture's level."""
    regions = frame.allocation.regions.numpy()
    levels = region_scales(regions).min(axis=1)
    largest = max(float(frame.allocation.relevance.max()), 1e-6)
    for box, relevance, level in zip(
        tile_boxes(regions, grid.shape).tolist(), frame.allocation.relevance.tolist(), levels.tolist(), strict=True
    ):
        top, left, bottom, right = box
        yield (
            (left / grid.cols, top / grid.rows, right / grid.cols, bottom / grid.rows),
            0.02 + 0.98 * relevance / largest,
            float(level),
        )


def show_scene(scene: str, frames: int) -> Image:
    """The picture after `frames` frames of a drawn scene."""
    allocator = StreamAllocator(AllocatorOptions(budget=BUDGET, levels=True))
    drawn = open_scene(scene)
    store = GlStore(PlaneFormat.of(drawn.planes(0)), Thresholds(), lease_timeout_ms=1000)
    for index in range(frames):
        store.update(drawn.planes(index), FrameStamp(index, index * 33_000_000, 0, epoch=1))
        with store.lease() as view:
            frame = allocator.allocate(view)
    program = ArProgram(open_device())
    try:
        return program.picture(store, frame)
    finally:
        program.close()
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("ar.png"))
    parser.add_argument("--scene", default="street")
    parser.add_argument("--frames", type=int, default=10)
    options = parser.parse_args()
    picture = show_scene(options.scene, options.frames)
    cv2.imwrite(str(options.out), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    print(f"{options.out}: {picture.shape[1]}x{picture.shape[0]}, drawn by {open_device().renderer}")


if __name__ == "__main__":
    main()
