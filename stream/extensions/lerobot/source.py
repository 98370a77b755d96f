"""Source of an episode: a part of the dataset's video file."""

from __future__ import annotations

from dataclasses import replace

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError, SourceOver
from stream.extension import SourceOpening
from stream.extensions.lerobot.episodes import AGAIN, EpisodeAddress
from stream.sources.checks import TimeRange
from stream.sources.decoder import open_container
from stream.sources.file import ContainerSource
from stream.sources.hardware import HardwareDecoding
from stream.sources.segments import SegmentRecorder


class EpisodeSource(ContainerSource):
    """Episode of a LeRobot dataset: part of a file, with media time from 0."""

    def __init__(
        self, address: str, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None = None
    ) -> None:
        """Raise SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large."""
        episode = EpisodeAddress.of(address).find()
        from_ns = round(episode.from_s * NS_PER_S)
        to_ns = round(episode.to_s * NS_PER_S)
        part = TimeRange.of(config).within(from_ns, to_ns, round(NS_PER_S / episode.fps / 2))
        hardware = HardwareDecoding(config, episode.name)
        container = open_container(episode.video, config, hardware)
        try:
            super().__init__(container, episode.name, config, clock, hardware, part, segments)
        except SourceOver as error:
            if config.start_s or config.duration_s is not None:
                raise
            span = f"from {episode.from_s:g} to {episode.to_s:g} s"
            raise SourceError(
                f"{episode.video} has no frame {span}, where {episode.name} should be; {AGAIN}"
            ) from error
        self._info = replace(self._info, duration_ns=to_ns - from_ns, frames=episode.frames)


def open_episode(opening: SourceOpening) -> EpisodeSource:
    """Open the episode at an address."""
    return EpisodeSource(opening.address, opening.capture, opening.clock, opening.segments)
