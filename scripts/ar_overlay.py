"""An AR program's view of a live run: drawn from the run's own texture, in a separate OpenGL context.

    python -m scripts.ar_overlay [SOURCE] [--out FILE.mp4|FILE.png] [--query TEXT] [--model MODEL] [--frames N]

SOURCE is an address as `arr-coc-stream` takes it: `scene:demo`, the number of a webcam, a file. The run keeps its
texture with the store `gl`. This program makes a second context that shares objects with the store's, and draws the
camera's picture as a tilted plane; above it float the regions that were chosen for the model, the higher, the more
relevant, each from the texture's level that the model is shown. Below stands the newest answer. No pixel leaves the GPU
but the pictures that are saved. It needs no screen, and runs on software OpenGL, too.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.device import GlDevice
from arr_coc.errors import ArrCocError
from arr_coc.texture.regions import region_mean, region_scales, tile_boxes
from arr_coc.texture.store.base import DrawnTexture
from arr_coc.types import NS_PER_S
from stream.answer.model import CONFIGURED
from stream.clock import clock_text
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, TextureConfig
from stream.errors import StreamError
from stream.events import Answer, Event, FrameMap, FrameReady
from stream.extensions.heatmap.sink import CLOCK_HZ, picture_file
from stream.runtime.frame_stages import run_in_threads
from stream.sinks.drawing import KeyItem, draw_strip, strip_height
from stream.untrusted import printable

Image = npt.NDArray[np.uint8]
Matrix = npt.NDArray[np.float32]

SIZE = (960, 600)
"""Width and height of the picture, both even, as H.264 has them."""

LIFT = 0.16
"""Height of a floating region of relevance 1, in widths of the picture."""

EDGE_PX = 1.6

KEY = (KeyItem("read by the model", (255, 255, 255), (255, 180, 26)),)

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
layout(location = 5) uniform float light;
layout(location = 6) uniform vec3 border;
layout(location = 7) uniform float edge;  // width of the border, in pixels
in vec2 place;
in vec2 corner;
out vec4 colour;
void main() {
    vec2 inside = min(corner, 1.0 - corner) / max(fwidth(corner), vec2(1e-6));
    bool outermost = min(inside.x, inside.y) < edge;
    colour = vec4(outermost ? border : textureLod(picture, place, level).rgb * light, 1.0);
}
"""


def camera_matrix(width: float, height: float) -> Matrix:
    """A camera that looks at the plane from before it and above: float32 [4, 4]."""
    eye, target, up = np.array([0.0, 1.05, 0.8]), np.array([0.0, 0.05, 0.0]), np.array([0.0, 1.0, 0.0])
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, up) / np.linalg.norm(np.cross(forward, up))
    above = np.cross(right, forward)
    view = np.eye(4)
    view[:3, :3] = right, above, -forward
    view[:3, 3] = -view[:3, :3] @ eye
    near, far, focal = 0.1, 10.0, 3.1
    lens = np.zeros((4, 4))
    lens[0, 0], lens[1, 1] = focal * height / width, focal
    lens[2, 2:] = (far + near) / (near - far), 2 * far * near / (near - far)
    lens[3, 2] = -1
    return np.asarray(lens @ view, np.float32)


FLAT = np.array([[2, 0, 0, 0], [0, 0, -2, 0], [0, 0, 0, -1], [0, 0, 0, 1]], np.float32)
"""A view in which the plane fills the viewport, before all else."""


@dataclass(frozen=True, slots=True)
class ArOverlay:
    """What is drawn over a frame: regions int64 [K, 3] of a grid of tiles with their relevance [K], and two texts."""

    grid: tuple[int, int] = (0, 0)
    regions: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    relevance: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    caption: str = ""
    note: str = ""

    def with_map(self, frame_map: FrameMap) -> ArOverlay:
        """The overlay with the regions of a frame's event; those of an overview are left out."""
        grid = (frame_map.rows, frame_map.cols)
        relevance = np.frombuffer(frame_map.relevance, np.uint8).reshape(grid).astype(np.float32) / 255
        regions = np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3)[frame_map.overview :].astype(np.int64)
        return replace(self, grid=grid, regions=regions, relevance=region_mean(regions, relevance))

    def quads(self) -> Iterator[tuple[tuple[float, ...], float, float]]:
        """Each region as its box in [0, 1], how far it is lifted, in [0, 1], and the texture's level."""
        rows, cols = self.grid
        levels = region_scales(self.regions).min(axis=1)
        largest = max(float(self.relevance.max(initial=0)), 1e-6)
        boxes = tile_boxes(self.regions, self.grid).tolist()
        for (top, left, bottom, right), relevance, level in zip(
            boxes, self.relevance.tolist(), levels.tolist(), strict=True
        ):
            box = (left / cols, top / rows, right / cols, bottom / rows)
            yield box, 0.02 + 0.98 * relevance / largest, float(level)


class Drawable(Protocol):
    """A texture to draw from: a store of OpenGL, or the live texture of a run."""

    def drawing(self, timeout_ms: int | None = None) -> AbstractContextManager[DrawnTexture]: ...


class ArProgram:
    """A program of one's own, with a context that shares objects with the stream's `device`."""

    def __init__(self, device: GlDevice, size: tuple[int, int] = SIZE) -> None:
        self._device, self._size = device, size
        self._gl, self._calls = device.library.gl, device.library.calls
        self._strip: tuple[str, str] | None = None
        self._strip_px = strip_height(size[0], KEY)
        self._context = device.make_context()
        with self._current():
            self._program = self._linked()
            self._target = self._framebuffer()
            self._shape = self._gl.glGenVertexArrays(1)
            self._sampler = self._plain_sampler()
            self._texts = self._text_texture()

    def picture(self, texture: Drawable, overlay: ArOverlay) -> tuple[Image, DrawnTexture]:
        """The newest frame with an overlay, uint8 [height, width, 3] RGB, and the frame that it shows.

        Regions of a frame of another size are not drawn. Raises as `TextureStore.drawing`.
        """
        with self._current():
            with texture.drawing() as frame:
                self._draw(frame, overlay)
            return self._read(), frame

    def close(self) -> None:
        """End the context."""
        self._calls.eglDestroyContext(self._device.display, self._context)

    def _draw(self, frame: DrawnTexture, overlay: ArOverlay) -> None:
        gl, (width, height) = self._gl, self._size
        above = height - self._strip_px
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._target)
        gl.glViewport(0, self._strip_px, width, above)
        gl.glClearColor(0.05, 0.06, 0.09, 1)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glEnable(gl.GL_DEPTH_TEST)
        gl.glUseProgram(self._program)
        gl.glBindVertexArray(self._shape)
        gl.glBindTextureUnit(0, frame.name)
        gl.glBindSampler(0, self._sampler)
        gl.glUniformMatrix4fv(0, 1, True, camera_matrix(width, above))
        gl.glUniform2f(3, 1.0, frame.grid.rows / frame.grid.cols)
        self._quad((0, 0, 1, 1), light=0.35)
        if overlay.grid == frame.grid.shape:
            for box, lift, level in sorted(overlay.quads(), key=lambda quad: quad[1]):
                self._quad(box, lift * LIFT, level, border=(1.0, 0.45 + 0.5 * lift, 0.1))
        self._draw_texts(overlay)

    def _draw_texts(self, overlay: ArOverlay) -> None:
        gl, width, texts = self._gl, self._size[0], (overlay.caption, overlay.note)
        if texts != self._strip:
            self._strip, strip = texts, np.ascontiguousarray(draw_strip(width, *texts, KEY))
            gl.glPixelStorei(gl.GL_UNPACK_ALIGNMENT, 1)
            box = (0, 0, width, self._strip_px)
            gl.glTextureSubImage2D(self._texts, 0, *box, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, strip)
        gl.glBindTextureUnit(0, self._texts)
        gl.glViewport(0, 0, width, self._strip_px)
        gl.glUniformMatrix4fv(0, 1, True, FLAT)
        gl.glUniform2f(3, 1.0, 1.0)
        self._quad((0, 0, 1, 1))

    def _read(self) -> Image:
        gl, (width, height) = self._gl, self._size
        out = np.empty((height, width, 3), np.uint8)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        gl.glReadPixels(0, 0, width, height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, out)
        return np.ascontiguousarray(out[::-1])

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._calls.eglMakeCurrent(self._device.display, None, None, self._context)
        try:
            yield
        finally:
            self._calls.eglMakeCurrent(self._device.display, None, None, None)

    def _quad(
        self,
        box: tuple[float, ...],
        height: float = 0.0,
        level: float = 0.0,
        light: float = 1.0,
        border: tuple[float, float, float] | None = None,
    ) -> None:
        gl = self._gl
        gl.glUniform4f(1, *box)
        for location, value in ((2, height), (4, level), (5, light), (7, 0.0 if border is None else EDGE_PX)):
            gl.glUniform1f(location, value)
        gl.glUniform3f(6, *(border or (0.0, 0.0, 0.0)))
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

    def _text_texture(self) -> int:
        gl, name = self._gl, ctypes.c_uint()
        gl.glCreateTextures(gl.GL_TEXTURE_2D, 1, name)
        gl.glTextureStorage2D(name.value, 1, gl.GL_RGBA8, self._size[0], self._strip_px)
        return int(name.value)

    def _plain_sampler(self) -> int:
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


def draw_run(config: Config, out: str, size: tuple[int, int] = SIZE, model_loader: str = CONFIGURED) -> int:
    """Run a source, and draw its newest frame into a file whenever a frame's tokens are chosen; return the number of
    pictures. A file is played at its own pace. Raises StreamError and ArrCocError."""
    capture, texture = config.capture.model_copy(update={"realtime": True}), TextureConfig(backend="gl")
    live = config.model_copy(update={"capture": capture, "texture": texture})
    with ExitStack() as stack:
        run = run_in_threads(live, model_loader=model_loader, maps=True)
        stack.callback(run.close)
        program = ArProgram(run.texture.gl_device, size)
        stack.callback(program.close)
        film = stack.enter_context(closing(picture_file(out, *size)))
        overlay, pictures, last_ns = ArOverlay(note=run.source_info.name), 0, -1
        for event in stack.enter_context(closing(run.run())):
            overlay = _followed(overlay, event)
            if not isinstance(event, FrameReady) or round(event.pts_s * NS_PER_S) <= last_ns:
                continue  # a newer frame was drawn already
            picture, frame = program.picture(run.texture, overlay)
            last_ns = frame.stamp.media_ns
            film.add(picture, round(last_ns * CLOCK_HZ / NS_PER_S))
            pictures += 1
    return pictures


def _followed(overlay: ArOverlay, event: Event) -> ArOverlay:
    """The overlay after an event: the newest answer, regions and time."""
    if isinstance(event, Answer):
        return replace(overlay, caption=printable(event.text))
    if isinstance(event, FrameReady) and event.map is not None:
        return replace(overlay.with_map(event.map), note=clock_text(event.pts_s))
    return overlay


def _config(options: argparse.Namespace) -> Config:
    answer_options = {"model": options.model} if options.model else {}
    return Config(
        source=options.source,
        capture=CaptureConfig(max_frames=options.frames),
        allocate=AllocateConfig(budget=options.budget),
        answer=AnswerConfig(query=options.query, every_s=1.0, **answer_options),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", default="scene:demo", help="as `watch` takes it")
    parser.add_argument("--out", default="ar.png", help="a video (.mp4) or the last picture (.png)")
    parser.add_argument("--query", default="Say what happens.")
    parser.add_argument("--model", help="the bundled one if not given")
    parser.add_argument("--budget", type=int, default=64, help="tokens of a frame")
    parser.add_argument("--frames", type=int, default=None, help="end after this many frames")
    options = parser.parse_args(arguments)
    try:
        pictures = draw_run(_config(options), options.out)
    except (StreamError, ArrCocError) as error:
        raise SystemExit(f"ar_overlay: {error}") from error
    print(f"{options.out}: {pictures} pictures of {SIZE[0]}x{SIZE[1]}")


if __name__ == "__main__":
    main()
