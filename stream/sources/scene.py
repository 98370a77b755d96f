"""Source of a generated scene: `scene:NAME`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.media import Source, SourceFrame, SourceInfo, never_stop
from stream.scenes import open_scene
from stream.sources.checks import TimeRange
from stream.sources.fit import FrameFitter


class SceneSource(Source):
    """Generated scene, drawn frame by frame, identical on every run. With `capture.loop` its time continues beyond its
    end."""

    def __init__(self, name: str, config: CaptureConfig, clock: Clock) -> None:
        """Raise SourceNotFound for a name that no scene has, ConfigError for a `capture.size` that is too large."""
        self._scene = open_scene(name)
        self._name = name
        self._fit = FrameFitter.of(config)
        self._loop = config.loop
        # a scene with `capture.loop` has more frames than a run can reach
        part = TimeRange.of(config)
        frames = range((2**40) if config.loop else self._scene.frames)
        begin = bisect_left(frames, part.start_ns, key=self._media_ns)
        if part.end_ns is None:
            end = len(frames)
        else:
            end = bisect_left(frames, part.end_ns, key=self._media_ns)
        indices = range(begin, end)
        if not indices:
            raise part.empty(f"scene:{name}", self._media_ns(len(frames)))
        self._indices = indices[: config.max_frames]
        self._clock = clock

    def describe(self) -> SourceInfo:
        """Return the scene's size, rate and length."""
        scene = self._scene
        return SourceInfo(
            name=f"scene:{self._name}",
            width_px=scene.width_px,
            height_px=scene.height_px,
            fps=float(scene.fps),
            duration_ns=None if self._loop else self._media_ns(scene.frames),
            frames=None if self._loop else scene.frames,
            live=False,
            codec="scene",
            pixel_format=scene.pixel_format,
        )

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield the frames, frame n at n / fps seconds."""
        for number, index in enumerate(self._indices):
            scene_index = index % self._scene.frames
            native_planes = self._scene.planes(scene_index)
            capture_ns = self._clock.now_ns()
            planes = self._fit.apply(native_planes, partial(self._scene.render, scene_index))
            media_ns = self._media_ns(index)
            discontinuity = None if number else "start"
            duration_ns = self._media_ns(index + 1) - media_ns
            yield SourceFrame(number, media_ns, capture_ns, planes, discontinuity, duration_ns=duration_ns)

    def _media_ns(self, index: int) -> int:
        return index * NS_PER_S // self._scene.fps
