"""Section `[heatmap]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option

HeatmapLayer = Literal["information", "perspective", "participation", "now", "relevance", "entropy", "motion"]


class HeatmapSection(ExtensionSection):
    """Overlay of the allocation on the frames (docs/cli.md#heat-map)."""

    section: ClassVar[str] = "heatmap"
    switch: ClassVar[str] = "file"

    file: Annotated[
        str | None,
        Option(
            "--heatmap FILE",
            "Also write an .mp4 or .png that shows which tokens were chosen.",
            without="web demo",
            group="Outputs",
        ),
    ] = None
    """A video with the allocation drawn over the frames (.mp4), or a picture of the last frame (.png). See
    docs/cli.md#heat-map."""
    layers: tuple[HeatmapLayer, ...] = Field(default=(), strict=False, examples=['["information", "motion"]'])
    """Maps below the frame: `information`, `perspective`, `participation`, `now`, `relevance`, `entropy`, `motion`. The
    first three are the scores, with their weights; `now` is this frame's relevance, `relevance` blended over time
    (docs/cli.md#heat-map)."""
    truth: bool = False
    """Outline the things of a drawn scene (`scene:NAME`): what is there, and not what the model has found."""
