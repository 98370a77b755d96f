"""What does not go together with watching for something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.config import Config

CUES = (".vtt", ".srt")


def check_watching(config: Config, *, go_on: bool) -> None:
    """Raises ConfigError where `--go-on` has nothing to go on with, and for captions where nothing is said."""
    until = config.answer.until
    if go_on and until.question is None:
        raise ConfigError('--go-on goes with --until; give for example --until "is there a red car?"')
    silent = [path for path in config.output.paths if path.lower().endswith(CUES)]
    if until.alone and silent:
        raise ConfigError(
            f"nothing would be said in {silent[0]!r}: a run with --until only looks for something; give -q as well for "
            "captions, or name a .jsonl"
        )
