"""Section `[latency]` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from arr_coc.types import SHOWS_ALL_TILES
from stream.config import Config, ExtensionSection
from stream.options.option import Option


class LatencySection(ExtensionSection):
    """Latency target, which moves the budget (docs/cli.md#latency-target)."""

    section: ClassVar[str] = "latency"
    switch: ClassVar[str] = "target_ms"
    changes_answers: ClassVar[bool] = True

    target_ms: Annotated[
        float | None,
        Option(
            "--target-ms MS",
            "Adapt the budget to keep p95 time to first token below this. [off]",
            without="demo",
            group="Tokens",
        ),
    ] = Field(default=None, gt=0)
    """Target for p95 time to first token, from the frame's capture, in milliseconds: the budget adapts within
    `allocate.min_tokens` to `allocate.max_tokens`. It has no effect if a file is read frame by frame. See
    docs/cli.md#latency-target."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        encode = config.answer.encode
        if self.target_ms is None:
            return
        if encode in SHOWS_ALL_TILES:
            yield (
                "latency.target_ms",
                f"latency.target_ms moves the budget, which answer.encode = {encode} ignores; give --encode sparse, "
                "incremental or prune",
            )
        if config.watches_only:
            yield (
                "latency.target_ms",
                "latency.target_ms needs answers, and a run with watches alone gives none; give -q as well",
            )
