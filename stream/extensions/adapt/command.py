"""`adapt` command: an allocator for a model, learned from clips without labels, or from boxes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stream.commands.options import GivenOptions, parse_count, takes_options, text_option
from stream.commands.outcome import INTERRUPTED, report_note
from stream.errors import ConfigError, SourceError
from stream.options.durations import parse_duration

FRAMES = 160
STEPS = 1500
MAX_TILES = 1024
SEED = 1
SCORERS = ("cross", "film")
CHANNELS = ("core13", "full40")


@takes_options
def adapt(
    clips: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLIP...", help="Videos, pictures or folders of pictures to learn from.", show_default=False
        ),
    ] = None,
    *,
    output: Annotated[str, text_option("--output", "-o", metavar="FOLDER", help="Folder for the allocator.")],
    question: Annotated[
        str | None,
        text_option("--question", metavar="FILE", help="Questions to learn from, one a line. [generic ones]"),
    ] = None,
    boxes: Annotated[
        str | None,
        text_option(
            "--boxes", metavar="PATH", help="Also learn from labels: JSONL of questions and boxes, or COCO's folder."
        ),
    ] = None,
    frames: Annotated[
        str | None,
        text_option("--frames", metavar="N", help=f"Frames of all clips together, pictures of COCO. [{FRAMES}]"),
    ] = None,
    steps: Annotated[str | None, text_option("--steps", metavar="N", help=f"Steps of learning. [{STEPS}]")] = None,
    minutes: Annotated[
        str | None,
        text_option("--minutes", metavar="TIME", help="Time in all, in place of --steps: 10, 90s, 1h. [no limit]"),
    ] = None,
    max_tiles: Annotated[
        str | None,
        text_option("--max-tiles", metavar="N", help=f"Scale frames down to at most this many tiles. [{MAX_TILES}]"),
    ] = None,
    scorer: Annotated[
        str | None, text_option("--scorer", metavar="NAME", help="Kind of query scorer: cross or film. [cross]")
    ] = None,
    channels: Annotated[
        str | None,
        text_option(
            "--channels", metavar="NAME", help="Channels of a tile: core13, or full40 (experimental). [core13]"
        ),
    ] = None,
    seed: Annotated[
        str | None, text_option("--seed", metavar="N", help=f"Seed of weights and of random draws. [{SEED}]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted or killed.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines on stderr.")] = False,
    options: GivenOptions,
) -> int:
    """Make an allocator for a model, from clips without labels.

    The model is asked about frames, shown all of their tokens, and the allocator learns to look where the model looks.
    Other commands use it with --allocator.
    """
    if not clips and boxes is None:
        raise ConfigError("no CLIP to learn from; give videos or pictures, or --boxes PATH")
    if steps is not None and minutes is not None:
        raise ConfigError("--steps and --minutes both say how long; give one of them")
    if scorer is not None and scorer not in SCORERS:
        raise ConfigError(f"--scorer must be {' or '.join(SCORERS)}; got {scorer!r}")
    if channels is not None and channels not in CHANNELS:
        raise ConfigError(f"--channels must be {' or '.join(CHANNELS)}; got {channels!r}")
    count = _count("--frames", frames, FRAMES)
    tiles = _count("--max-tiles", max_tiles, MAX_TILES)
    step_count = _count("--steps", steps, STEPS)
    random_seed = _count("--seed", seed, SEED)
    limit = None if minutes is None else _minutes(minutes)
    _check(clips or (), options["model"], question)

    from arr_coc.adaptation.adapt import AdaptOptions
    from stream.commands.run import report_written
    from stream.extensions.adapt.progress import print_adaptation
    from stream.extensions.adapt.run import LearningMaterial, TeacherOptions, run_adaptation

    material = LearningMaterial(tuple(clips or ()), question, boxes, count, tiles)
    teacher = TeacherOptions(options["model"], options["device"] or "auto", options["dtype"] or "auto")
    learning = AdaptOptions(
        step_count,
        limit,
        random_seed,
        scorer or SCORERS[0],  # type: ignore[arg-type]
        channels or CHANNELS[0],  # type: ignore[arg-type]
    )
    result = run_adaptation(material, teacher, output, learning, resume=resume)
    if result is None:
        report_note("not finished: the same command with --resume continues from here")
        return INTERRUPTED
    print_adaptation(result)
    report_written([os.path.join(output, "adapt.json")])
    report_note(f"other commands use it with --allocator {output}")
    return 0


def _check(clips: Sequence[str], model: str | None, question: str | None) -> None:
    """Raise SourceError, ModelError and OptionError if a clip, the model or the questions cannot be used, before
    anything is loaded."""
    from arr_coc.adaptation.questions import read_question_file
    from stream.answer.loading import model_name
    from stream.config import CaptureConfig, Config, NetworkConfig
    from stream.sources.address import STDIN, is_live_address, redacted
    from stream.sources.factory import check_source

    for clip in clips:
        if clip == STDIN or is_live_address(clip):
            if clip == STDIN:
                name = "standard input"
            else:
                name = redacted(clip)
            raise SourceError(f"{name} can be read only once, in order", "record it, and give the file")
        check_source(clip, CaptureConfig(), NetworkConfig())
    if question is not None:
        read_question_file(Path(question).expanduser())
    config = Config()
    model_name(config.model_copy(update={"answer": config.answer.model_copy(update={"model": model})}))


def _count(option: str, text: str | None, usual: int) -> int:
    if text is None:
        return usual
    return parse_count(option, text)


def _minutes(text: str) -> float:
    """Read a length of time, whose bare number means minutes. Raises ConfigError."""
    bare = text.strip().replace(".", "", 1).isdigit()
    return parse_duration("--minutes", f"{text.strip()}m" if bare else text) / 60
