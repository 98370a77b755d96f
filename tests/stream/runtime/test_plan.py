"""The plan of a run, by configuration and source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.strategies import Magnification
from arr_coc.budget import TokenLimits
from arr_coc.errors import ModelError
from arr_coc.resources import presets
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    CutConfig,
    MemoryConfig,
    PipelineConfig,
    TextureConfig,
    WatchConfig,
    ZoneConfig,
)
from stream.config_loading import build_config, layer_from_file
from stream.errors import ConfigError
from stream.extensions.journal.journal import Journal
from stream.extensions.latency.section import LatencySection
from stream.extensions.zeromq.section import ZeromqSection
from stream.protocol.messages import ServerHello
from stream.runtime.plan import INTEROP_OFF, RunPlan, model_cuda_device, texture_interop
from stream.sources import SourceInfo
from stream.stages.base import FrameLimits
from tests.support.sections import sections

FILE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")
HELLO = ServerHello(model_id="m", knows_levels=True, known_world=None)
CAMERA = replace(FILE, name="camera", live=True)


@pytest.mark.parametrize(
    ("info", "realtime", "frames", "answers", "drops", "lockstep"),
    [
        (FILE, False, "lossless", "lockstep", False, True),
        (FILE, False, "lossless", "newest", False, False),
        (FILE, False, "newest", "lockstep", True, True),
        (FILE, True, "lossless", "lockstep", True, False),
        (CAMERA, False, "lossless", "lockstep", True, False),
    ],
)
def test_the_stage_that_waits(
    info: SourceInfo, realtime: bool, frames: str, answers: str, drops: bool, lockstep: bool
) -> None:
    config = Config(
        capture=CaptureConfig(realtime=realtime),
        pipeline=PipelineConfig.model_validate({"frames": frames, "answers": answers}),
    )
    plan = RunPlan.of(config, info)
    assert (plan.drop_frames, plan.realtime) == (drops, realtime)
    assert plan.allocate.even_intervals == plan.paced
    assert not RunPlan.of(
        Config.model_validate({**config.model_dump(), "pipeline": {"steady": False}}), info
    ).allocate.even_intervals
    assert plan.schedule.lockstep == plan.client.resend_after_loss == lockstep


def test_frames_that_are_published_are_not_held() -> None:
    assert RunPlan.of(Config(), CAMERA).allocate.even_intervals
    assert not RunPlan.of(Config(**sections(zeromq__publish="tcp://127.0.0.1:5556")), CAMERA).allocate.even_intervals


def test_a_camera_sets_its_own_pace_and_counts_capture_time() -> None:
    config = Config(capture=CaptureConfig(realtime=True))
    assert not RunPlan.of(config, CAMERA).realtime
    assert RunPlan.of(config, CAMERA).allocate.live
    assert not RunPlan.of(config, FILE).allocate.live


@pytest.mark.parametrize(
    ("info", "restart", "restarted"),
    [(FILE, None, False), (CAMERA, None, True), (FILE, True, True), (CAMERA, False, False)],
)
def test_live_runs_go_on_when_a_process_dies_unless_configured_otherwise(
    info: SourceInfo, restart: bool | None, restarted: bool
) -> None:
    plan = RunPlan.of(Config(pipeline=PipelineConfig(restart=restart)), info)
    assert plan.restart == plan.client.reconnect == restarted


@pytest.mark.parametrize(
    ("info", "sections", "reconnects", "persistent"),
    [
        (FILE, {}, True, False),
        (CAMERA, {}, True, True),
        (CAMERA, {"pipeline": {"restart": True}}, True, True),
        (CAMERA, {"pipeline": {"restart": False}}, False, True),
        (CAMERA, {"answer": {}}, True, False),
        (FILE, {"capture": {"realtime": True}}, True, True),
        (FILE, {"capture": {"realtime": True}, "pipeline": {"answers": "newest"}}, True, True),
        (FILE, {"pipeline": {"answers": "newest"}}, False, False),
        (FILE, {"pipeline": {"restart": False}}, False, False),
    ],
)
def test_a_lost_server_is_looked_for_unless_measured_and_a_run_at_its_own_pace_never_ends_for_it(
    info: SourceInfo, sections: dict[str, object], reconnects: bool, persistent: bool
) -> None:
    client = RunPlan.of(Config.model_validate({"answer": {"server": "tcp://127.0.0.1:5555"}, **sections}), info).client
    assert (client.reconnect, client.persistent) == (reconnects, persistent)


def test_the_answer_section_sets_when_to_ask() -> None:
    answer = AnswerConfig(every_s=0.5, on_change=0.25, on_cut=False, query="why?")
    schedule = RunPlan.of(Config(answer=answer, pipeline=PipelineConfig(timeout_s=7)), FILE).schedule
    assert schedule.answer == answer
    assert (schedule.query, schedule.silence_limit_s) == ("why?", 7)


def test_only_an_answer_server_elsewhere_must_be_reached_in_time() -> None:
    capture = CaptureConfig(open_timeout_s=3)
    assert RunPlan.of(Config(capture=capture), CAMERA).schedule.connect_limit_s is None
    remote = AnswerConfig(server="tcp://127.0.0.1:5555")
    assert RunPlan.of(Config(capture=capture, answer=remote), CAMERA).schedule.connect_limit_s == 3


@pytest.mark.parametrize(
    ("encode", "whole_frames"), [("sparse", False), ("prune", True), ("full", True), ("weighted", True)]
)
def test_the_encoding_decides_the_message(encode: str, whole_frames: bool) -> None:
    plan = RunPlan.of(Config(answer=AnswerConfig.model_validate({"encode": encode})), FILE)
    assert plan.allocate.whole_frames == whole_frames
    assert plan.client.encode == encode


def test_frames_come_with_maps_if_the_run_publishes() -> None:
    assert not RunPlan.of(Config(), FILE).tap.maps
    assert RunPlan.of(Config(zeromq=ZeromqSection(publish="tcp://127.0.0.1:5556")), FILE).tap.maps


def test_a_run_that_is_continued_brings_its_journal() -> None:
    journal = Journal("x.resume", {})
    assert RunPlan.of(Config(), FILE, continuation=journal).client.filters[-1] is journal


@pytest.mark.parametrize(("source", "is_scene"), [("scene:demo", True), ("scene.mp4", False)])
def test_scenes_are_drawn(source: str, is_scene: bool) -> None:
    assert RunPlan.of(Config(source=source), FILE).schedule.source_is_drawn == is_scene


def test_options_without_effect_in_lockstep_are_reported() -> None:
    config = Config(answer=AnswerConfig(on_cut="cancel"), latency=LatencySection(target_ms=100))
    assert [notice.code for notice in RunPlan.of(config, FILE).notices] == ["target-off", "cancel-off"]
    assert RunPlan.of(config, FILE).budget.setters == ()
    assert RunPlan.of(config, CAMERA).notices == ()
    assert len(RunPlan.of(config, CAMERA).budget.setters) == 1


def test_the_texture_section_becomes_options() -> None:
    section = TextureConfig(
        backend="gl", mean_threshold=1, max_threshold=2, lease_timeout_ms=3, cut=CutConfig(enabled=False)
    )
    options = RunPlan.of(Config(texture=section), FILE).texture
    assert (options.thresholds.mean, options.thresholds.largest) == (1, 2)
    assert (options.lease_timeout_ms, options.cuts, options.backend) == (3, False, "gl")


@pytest.mark.parametrize(
    ("wide", "knows_wide", "expected"),
    [("auto", True, True), ("auto", False, False), (True, False, True), (False, True, False)],
)
def test_wide_tokens_are_for_models_that_know_them_unless_the_user_sets_them(
    wide: bool | Literal["auto"], knows_wide: bool, expected: bool
) -> None:
    hello = ServerHello(model_id="m", knows_levels=True, known_world=None, knows_wide=knows_wide)
    options = RunPlan.of(Config(allocate=AllocateConfig(wide=wide)), FILE).make_allocator(hello).options
    assert options.wide is expected


@pytest.mark.parametrize(
    ("zone", "watches", "captions", "focus_names"),
    [
        ("a", [], True, ["a"]),
        (None, ["a", "b", "a"], False, ["a", "b"]),
        (None, ["a", "b"], True, []),
        ("a", ["b"], True, ["a", "b"]),
        ("a", ["b", None], True, []),
        (None, [], True, []),
    ],
)
def test_tokens_show_the_zones_of_all_questions_or_the_whole_picture(
    zone: str | None, watches: list[str | None], captions: bool, focus_names: list[str]
) -> None:
    zones = {name: ZoneConfig(box=(0.0, 0.0, 0.5, size)) for name, size in (("a", 0.5), ("b", 1.0))}
    questions = tuple(WatchConfig(question="?", name=f"w{at}", zone=zone) for at, zone in enumerate(watches))
    config = Config(zones=zones, watch=questions, answer=AnswerConfig(zone=zone, captions=captions))
    options = RunPlan.of(config, FILE).make_allocator(HELLO).options
    focus = () if options.zones is None else options.zones.focus
    assert focus == tuple(zones[name].polygon for name in focus_names)


@pytest.mark.parametrize(
    ("settings", "server_tokens", "options"),
    [
        ({"enabled": True}, 9000, GroupOptions(512, 9)),
        ({"enabled": True}, 300, GroupOptions(300, 9)),
        ({"enabled": True}, 0, None),
        ({"enabled": False}, 9000, None),
        ({"frames": 2}, 9000, GroupOptions(512, 9, 2)),
    ],
)
def test_groups_of_pictures_are_as_long_as_configuration_and_server_allow(
    settings: dict[str, Any], server_tokens: int, options: GroupOptions | None
) -> None:
    memory = MemoryConfig(**settings, tokens=512, seconds=9)
    hello = ServerHello(model_id="m", knows_levels=True, known_world=None, memory_tokens=server_tokens)
    plan = RunPlan.of(Config(answer=AnswerConfig(memory=memory)), FILE)
    assert plan.make_allocator(hello).options.memory == options


def test_the_allocator_has_the_options_of_the_run() -> None:
    config = Config(allocate=AllocateConfig(strategy="auto", budget=7, explore=0.5, coverage=0.125, tau_ms=11, seed=3))
    hello = ServerHello(model_id="m", knows_levels=True, known_world=None)
    options = RunPlan.of(config, FILE).make_allocator(hello).options
    assert (options.strategy, options.budget, options.explore, options.coverage) == ("auto", 7, 0.5, 0.125)
    assert (options.tau_ms, options.seed) == (11, 3)
    assert not options.on_device, "a file gives the same on every backend"
    assert RunPlan.of(config, CAMERA).make_allocator(hello).on_device


@pytest.mark.parametrize(
    ("fixation", "magnification"),
    [({}, None), ({"e0": 0.2}, Magnification(0.2)), ({"e0": 0.2, "m0": 0.1}, Magnification(0.2, 0.1))],
)
def test_a_fixation_has_the_magnification_of_the_run(
    fixation: dict[str, Any], magnification: Magnification | None
) -> None:
    config = Config(allocate=AllocateConfig.model_validate({"strategy": "fixation", "fixation": fixation}))
    hello = ServerHello(model_id="m", knows_levels=True, known_world=None)
    assert RunPlan.of(config, FILE).make_allocator(hello).options.magnification == magnification


@pytest.mark.parametrize(
    ("strategy", "fixation", "error"),
    [
        ("auto", {"e0": 0.2}, "allocate.fixation is of --strategy fixation, and the strategy is auto; leave one out"),
        ("fixation", {"m0": 0.2}, "allocate.fixation.m0 means nothing without allocate.fixation.e0; give both, or e0 "),
    ],
)
def test_a_magnification_without_effect_is_refused(strategy: str, fixation: dict[str, Any], error: str) -> None:
    config = Config(allocate=AllocateConfig.model_validate({"strategy": strategy, "fixation": fixation}))
    with pytest.raises(ConfigError, match=f"^{error}"):
        RunPlan.of(config, FILE)


@pytest.mark.parametrize("options", [{"strategy": "fixation"}, {"wide": True}, {"channels": "full40"}])
def test_options_that_need_the_host_are_allocated_there(options: dict[str, Any]) -> None:
    config = Config(allocate=AllocateConfig(**options))
    hello = ServerHello(model_id="m", knows_levels=True, known_world=None)
    assert not RunPlan.of(config, CAMERA).make_allocator(hello).on_device


@pytest.mark.parametrize("preset", presets())
def test_every_preset_lets_live_frames_be_allocated_on_the_device(preset: str) -> None:
    hello = ServerHello(model_id="m", knows_levels=False, known_world=None)
    plan = RunPlan.of(build_config([layer_from_file(preset)]), CAMERA)
    assert plan.make_allocator(hello).on_device


@pytest.mark.parametrize("budget", ["auto", "adaptive"])
def test_the_least_and_most_tokens_reach_the_allocator_and_the_controller(budget: Any) -> None:
    allocate = AllocateConfig(budget=budget, min_tokens=3, max_tokens=7)
    plan = RunPlan.of(Config(allocate=allocate, latency=LatencySection(target_ms=400)), CAMERA)
    allocator = plan.make_allocator(ServerHello(model_id="m", knows_levels=True, known_world=None))
    assert allocator.on_device
    assert allocator.options.limits == TokenLimits(3, 7)
    (controller,) = plan.budget.setters
    assert controller.limits(1024, FrameLimits()).most_tokens == 7


def follows(*watches: WatchConfig, **answer: Any) -> bool:
    return RunPlan.of(Config(answer=AnswerConfig(**answer), watch=watches), CAMERA).schedule.follows_change


def test_change_is_measured_only_if_an_answer_or_a_check_depends_on_it() -> None:
    assert not follows()
    assert follows(on_change=0.1)
    assert follows(WatchConfig(question="is it?"))
    assert not follows(WatchConfig(question="is it?", on_change=None))


def interop(monkeypatch: pytest.MonkeyPatch, problem: str | None, backend: str = "gl", **texture: Any) -> Any:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("arr_coc.backends.cuda.interop.interop_problem", lambda device: problem)
    config = Config(texture=TextureConfig(**texture), answer=AnswerConfig(device="cuda:1"))
    return texture_interop(config, backend)


def test_a_model_on_cuda_reads_a_texture_of_opengl_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interop(monkeypatch, None) == (1, None)
    assert interop(monkeypatch, None, interop="off") == (None, None)
    assert interop(monkeypatch, None, backend="cuda") == (None, None)
    device, notice = interop(monkeypatch, "OpenGL is elsewhere")
    assert device is None
    assert notice.code == INTEROP_OFF
    assert "CUDA device 1" in notice.message
    assert "(OpenGL is elsewhere); give --backend cuda" in notice.message


@pytest.mark.parametrize(
    ("answer", "device"),
    [({}, 0), ({"device": "cuda"}, 0), ({"device": "cuda:1"}, 1), ({"device": "cpu"}, None), ({"server": "x"}, None)],
)
def test_the_models_device(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], device: int | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert model_cuda_device(Config(answer=AnswerConfig(**answer))) == device


def test_another_model_than_the_one_that_is_expected_of_a_server_is_refused() -> None:
    def plan(model: str | None, server: str | None = "tcp://10.0.0.2:5555") -> RunPlan:
        return RunPlan.of(Config(answer=AnswerConfig(model=model, server=server)), FILE)

    hello = ServerHello(model_id="Qwen/Qwen3-VL-2B-Instruct", knows_levels=False, knows_wide=False, known_world=None)
    for model in (None, "Qwen/Qwen3-VL-2B-Instruct", "/models/Qwen3-VL-2B-Instruct"):
        plan(model).make_allocator(hello)
    plan("other", server=None).make_allocator(hello)
    wrong = "5555 serves Qwen/Qwen3-VL-2B-Instruct, and answer.model is mine; give `serve-answers` there -m mine"
    with pytest.raises(ModelError, match=wrong):
        plan("mine").make_allocator(hello)
