"""What does not go together with watching for something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.config import Config

CUES = (".vtt", ".srt")


def check_watching(config: Config, *, go_on: bool, force: bool) -> None:
    """Raises ConfigError where `--go-on` or `--force` has nothing to act on, and for captions, or how soon they are to
    begin, where nothing is said."""
    until = config.answer.until
    if go_on and until.question is None:
        raise ConfigError('--go-on goes with --until; give for example --until "is there a red car?"')
    if force and until.question is None:
        raise ConfigError('--force goes with --until; give for example --until "is there a red car?"')
    if until.alone and config.answer.target_ms is not None:
        raise ConfigError("answer.target_ms is about answers, and a run with --until alone gives none; give -q as well")
    silent = [path for path in config.output.paths if path.lower().endswith(CUES)]
    if until.alone and silent:
        raise ConfigError(
            f"nothing would be said in {silent[0]!r}: a run with --until only looks for something; give -q as well for "
            "captions, or name a .jsonl"
        )
