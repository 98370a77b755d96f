"""Source: a ball that goes from left to right, `ball:SECONDS`."""

from collections.abc import Callable, Iterator

import numpy as np

from arr_coc.types import NS_PER_S, FramePlanes
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import SourceError
from stream.extension import SourceOpening
from stream.media import Source, SourceFrame, SourceInfo, never_stop

WIDTH, HEIGHT, FPS = 320, 192, 10


def seconds_of(address: str, capture: CaptureConfig, network: NetworkConfig) -> int:
    """Return the length of an address. Raises SourceError if it has none."""
    seconds = address.removeprefix("ball:")
    if not seconds.isdigit():
        raise SourceError(f"{address!r} has no length in seconds", "write for example ball:5")
    return int(seconds)


class BallSource(Source):
    """Frames of the ball."""

    def __init__(self, opening: SourceOpening) -> None:
        self._opening = opening
        self._count = FPS * seconds_of(opening.address, opening.capture, opening.network)

    def describe(self) -> SourceInfo:
        duration_ns = self._count * NS_PER_S // FPS
        return SourceInfo(self._opening.address, WIDTH, HEIGHT, FPS, duration_ns, self._count, False, "ball", "rgb24")

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        rows, cols = np.mgrid[:HEIGHT, :WIDTH]
        for number in range(self._count):
            picture = np.full((HEIGHT, WIDTH, 3), 230, np.uint8)
            picture[(rows - 96) ** 2 + (cols - 40 - 4 * number % 240) ** 2 < 30**2] = (210, 30, 30)
            planes = FramePlanes("rgb", (picture,))
            start = None if number else "start"
            yield SourceFrame(number, number * NS_PER_S // FPS, self._opening.clock.now_ns(), planes, start)
