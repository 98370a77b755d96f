"""From the configuration to the stages' policies."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from stream.answer.scheduler import AnswerEndpoint
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    CutConfig,
    OutputConfig,
    PipelineConfig,
    TextureConfig,
)
from stream.protocol.buffers import SnapshotWriter
from stream.protocol.messages import ServerHello
from stream.recording.journal import Journal
from stream.runtime.wiring import (
    allocate_policy,
    allocator_for,
    capture_policy,
    manners,
    restarts,
    speak_policy,
    texture_options,
)
from stream.sources import SourceInfo

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
    assert speak_policy(config, info).lockstep == lockstep
    assert manners(config, info, AnswerEndpoint("ipc://x"), None).resend_after_loss == lockstep


def test_a_camera_sets_its_own_pace_and_counts_capture_time() -> None:
    config = Config(capture=CaptureConfig(realtime=True))
    assert not capture_policy(config, CAMERA).realtime
    assert allocate_policy(config, CAMERA).live
    assert not allocate_policy(config, FILE).live


@pytest.mark.parametrize(
    ("info", "asked", "restarted"),
    [(FILE, None, False), (CAMERA, None, True), (FILE, True, True), (CAMERA, False, False)],
)
def test_live_runs_go_on_when_a_process_dies_unless_told_otherwise(
    info: SourceInfo, asked: bool | None, restarted: bool
) -> None:
    config = Config(pipeline=PipelineConfig(restart=asked))
    assert restarts(config, info) == restarted
    assert manners(config, info, AnswerEndpoint("ipc://x"), None).reconnect == restarted


@pytest.mark.parametrize(
    ("info", "sections", "rejoined"),
    [
        (FILE, {}, True),
        (CAMERA, {}, True),
        (FILE, {"capture": {"realtime": True}}, True),
        (FILE, {"capture": {"realtime": True}, "pipeline": {"answers": "newest"}}, True),
        (FILE, {"pipeline": {"answers": "newest"}}, False),
        (FILE, {"pipeline": {"restart": False}}, False),
        (CAMERA, {"pipeline": {"restart": False}}, False),
    ],
)
def test_a_server_that_is_lost_is_looked_for_unless_told_otherwise_or_measured(
    info: SourceInfo, sections: dict[str, object], rejoined: bool
) -> None:
    config = Config.model_validate({"answer": {"server": "tcp://127.0.0.1:5555"}, **sections})
    assert manners(config, info, AnswerEndpoint("tcp://127.0.0.1:5555"), None).reconnect == rejoined


def test_the_answer_section_says_when_to_speak() -> None:
    answer = AnswerConfig(every_s=0.5, on_change=0.25, on_cut=False, query="why?")
    policy = speak_policy(Config(answer=answer, pipeline=PipelineConfig(timeout_s=7)), FILE)
    assert (policy.triggers.every_ns, policy.triggers.on_change, policy.triggers.on_cut) == (500_000_000, 0.25, False)
    assert (policy.query, policy.silence_limit_s) == ("why?", 7)
    assert speak_policy(Config(answer=AnswerConfig(every_s=None)), FILE).triggers.every_ns is None


def test_only_an_answer_stage_elsewhere_must_be_met_in_time() -> None:
    capture = CaptureConfig(open_timeout_s=3)
    assert speak_policy(Config(capture=capture), CAMERA).connect_limit_s is None
    elsewhere = AnswerConfig(server="tcp://127.0.0.1:5555")
    assert speak_policy(Config(capture=capture, answer=elsewhere), CAMERA).connect_limit_s == 3


@pytest.mark.parametrize(("encode", "whole"), [("sparse", False), ("prune", True), ("full", True), ("weighted", True)])
def test_what_is_encoded_decides_what_is_sent(encode: str, whole: bool) -> None:
    config = Config(answer=AnswerConfig.model_validate({"encode": encode}))
    assert allocate_policy(config, FILE).whole_frames == whole
    assert manners(config, FILE, AnswerEndpoint("ipc://x"), None).encode == encode


def test_frames_come_with_maps_where_the_run_publishes() -> None:
    assert not allocate_policy(Config(), FILE).with_maps
    assert allocate_policy(Config(output=OutputConfig(publish="tcp://127.0.0.1:5556")), FILE).with_maps


def test_the_conversation_uses_what_the_answer_stage_shares_and_the_journal() -> None:
    journal = Journal("x.resume", {})
    with closing(SnapshotWriter()) as snapshot:
        made = manners(Config(), FILE, AnswerEndpoint("ipc://x", snapshot=snapshot, supervised=False), journal)
        assert made.snapshot is snapshot
    assert made.journal is journal
    assert not made.supervised


@pytest.mark.parametrize(("source", "drawn"), [("scene:demo", True), ("scene.mp4", False)])
def test_scenes_are_drawn(source: str, drawn: bool) -> None:
    assert speak_policy(Config(source=source), FILE).source_is_drawn == drawn


def test_the_texture_section_becomes_options() -> None:
    section = TextureConfig(mean_threshold=1, max_threshold=2, lease_timeout_ms=3, cut=CutConfig(enabled=False))
    options = texture_options(Config(texture=section), "gl")
    assert (options.thresholds.mean, options.thresholds.largest) == (1, 2)
    assert (options.lease_timeout_ms, options.cuts, options.backend) == (3, False, "gl")


@pytest.mark.parametrize("knows_levels", [True, False])
def test_the_allocator_knows_what_the_model_knows(knows_levels: bool) -> None:
    section = AllocateConfig(strategy="auto", budget=7, explore=0.5, coverage=0.125, tau_ms=11, seed=3)
    hello = ServerHello(model_id="m", knows_levels=knows_levels, known_world=None)
    options = allocator_for(Config(allocate=section), FILE, hello).options
    assert (options.strategy, options.budget, options.explore, options.coverage) == ("auto", 7, 0.5, 0.125)
    assert (options.tau_ms, options.seed, options.levels) == (11, 3, knows_levels)
    assert not options.on_device, "a file gives the same on every backend"
    assert allocator_for(Config(allocate=section), CAMERA, hello).options.on_device
