"""From the configuration to the stages' policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    CutConfig,
    PipelineConfig,
    TextureConfig,
)
from stream.messages import Hello
from stream.sources import SourceInfo
from stream.wiring import allocate_policy, allocator_for, capture_policy, texture_options

FILE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")
CAMERA = replace(FILE, name="camera", live=True)


@pytest.mark.parametrize(
    ("info", "realtime", "frames", "answers", "newest", "lockstep"),
    [
        (FILE, False, "lossless", "lockstep", False, True),
        (FILE, False, "lossless", "newest", False, False),
        (FILE, False, "newest", "lockstep", True, True),
        (FILE, True, "lossless", "lockstep", True, False),
        (CAMERA, False, "lossless", "lockstep", True, False),
    ],
)
def test_who_waits_for_whom(
    info: SourceInfo, realtime: bool, frames: str, answers: str, newest: bool, lockstep: bool
) -> None:
    config = Config(
        capture=CaptureConfig(realtime=realtime),
        pipeline=PipelineConfig.model_validate({"frames": frames, "answers": answers}),
    )
    assert capture_policy(config, info).newest == newest
    assert capture_policy(config, info).realtime == realtime
    assert allocate_policy(config, info).lockstep == lockstep


def test_a_camera_sets_its_own_pace_and_counts_capture_time() -> None:
    config = Config(capture=CaptureConfig(realtime=True))
    assert not capture_policy(config, CAMERA).realtime
    assert allocate_policy(config, CAMERA).live
    assert not allocate_policy(config, FILE).live


def test_the_answer_section_becomes_triggers_and_packets() -> None:
    answer = AnswerConfig(every_s=0.5, on_change=0.25, on_cut=False, encode="prune", query="why?")
    policy = allocate_policy(Config(answer=answer, pipeline=PipelineConfig(timeout_s=7)), FILE)
    assert (policy.rules.every_ns, policy.rules.on_change, policy.rules.on_cut) == (500_000_000, 0.25, False)
    assert (policy.query, policy.whole_frames, policy.silence_limit_s) == ("why?", True, 7)
    assert not allocate_policy(Config(), FILE).whole_frames
    assert allocate_policy(Config(answer=AnswerConfig(every_s=None)), FILE).rules.every_ns is None


@pytest.mark.parametrize(("source", "drawn"), [("scene:demo", True), ("scene.mp4", False)])
def test_scenes_are_drawn(source: str, drawn: bool) -> None:
    assert allocate_policy(Config(source=source), FILE).drawn_source == drawn


def test_the_texture_section_becomes_options() -> None:
    section = TextureConfig(mean_threshold=1, max_threshold=2, lease_timeout_ms=3, cut=CutConfig(enabled=False))
    options = texture_options(Config(texture=section))
    assert (options.thresholds.mean, options.thresholds.largest) == (1, 2)
    assert (options.lease_timeout_ms, options.cuts, options.backend) == (3, False, "auto")


@pytest.mark.parametrize("knows_levels", [True, False])
def test_the_allocator_knows_what_the_model_knows(knows_levels: bool) -> None:
    section = AllocateConfig(strategy="auto", budget=7, explore=0.5, coverage=0.125, tau_ms=11, seed=3)
    hello = Hello(model_id="m", knows_levels=knows_levels, known_world=None, query="?")
    options = allocator_for(Config(allocate=section), hello).options
    assert (options.strategy, options.budget, options.explore, options.coverage) == ("auto", 7, 0.5, 0.125)
    assert (options.tau_ms, options.seed, options.levels) == (11, 3, knows_levels)
