"""From the configuration to what each stage is made of."""

from __future__ import annotations

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.layer import deserialize_realiser
from arr_coc.ops.store.base import Backend
from arr_coc.ops.store.difference import Thresholds
from arr_coc.types import NEEDS_TOKENS_ONLY, NS_PER_S, SHOWS_ALL_TILES
from arr_coc.video.texture_updater import TextureOptions
from stream.answer.latency import LatencyController
from stream.answer.model_world import shows_scenes
from stream.answer.request import ClientOptions
from stream.answer.scheduler import AnswerEndpoint, SchedulePolicy
from stream.answer.triggers import AnswerTriggerOptions, StandingQueryOptions, VerdictThresholds, YesNoTriggerOptions
from stream.config import Config, StandingQueryConfig
from stream.protocol.messages import ServerHello
from stream.recording.journal import Journal
from stream.sources import SourceInfo
from stream.stages.allocate import AllocatePolicy
from stream.stages.capture import CapturePolicy


def paced(config: Config, info: SourceInfo) -> bool:
    """Whether frames come at a pace of their own, so that those that nobody has time for are dropped."""
    return info.live or config.capture.realtime


def restarts(config: Config, info: SourceInfo) -> bool:
    """Whether a process that dies or hangs is started again."""
    return info.live if config.pipeline.restart is None else config.pipeline.restart


def rejoins(config: Config, info: SourceInfo) -> bool:
    """Whether a run goes on with the next answer stage where one is lost.

    One elsewhere is waited for by whoever paces itself, and by a file that is read without leaving out an answer.
    """
    if config.answer.server is None or config.pipeline.restart is not None:
        return restarts(config, info)
    return paced(config, info) or config.pipeline.answers == "lockstep"


def capture_policy(config: Config, info: SourceInfo) -> CapturePolicy:
    newest = paced(config, info) or config.pipeline.frames == "newest"
    return CapturePolicy(newest=newest, realtime=config.capture.realtime and not info.live)


def texture_options(config: Config, backend: Backend) -> TextureOptions:
    """`backend` is asked of the store, in the place of the configured one."""
    texture = config.texture
    return TextureOptions(
        backend=backend,
        thresholds=Thresholds(texture.mean_threshold, texture.max_threshold),
        lease_timeout_ms=texture.lease_timeout_ms,
        cuts=texture.cut.enabled,
    )


def allocate_policy(config: Config, info: SourceInfo) -> AllocatePolicy:
    """How frames are allocated and told."""
    return AllocatePolicy(
        live=info.live,
        whole_frames=config.answer.encode not in NEEDS_TOKENS_ONLY,
        all_tiles=config.answer.encode in SHOWS_ALL_TILES,
        with_maps=config.output.publish is not None,
        with_reasons=config.output.why is not None,
        learns=config.answer.feedback,
    )


def watch_policy(until: StandingQueryConfig, holds: bool | None = None) -> StandingQueryOptions | None:
    """What is watched for; `holds` is the answer of a run that this one continues."""
    if until.question is None:
        return None
    return StandingQueryOptions(
        query=until.question,
        triggers=YesNoTriggerOptions(
            every_ns=None if until.every_s is None else round(until.every_s * NS_PER_S),
            on_change=until.on_change,
            on_cut=until.on_cut,
            least_ns=round(until.least_s * NS_PER_S),
        ),
        thresholds=VerdictThresholds(until.yes_above, until.no_below, until.sure, until.certain),
        only_query=until.alone,
        stop_on_yes=not until.go_on,
        initial_verdict=holds,
        force=until.force,
    )


def speak_policy(config: Config, info: SourceInfo, holds: bool | None = None) -> SchedulePolicy:
    """When to speak, and how long to wait for it. `holds` as in `watch_policy`."""
    answer = config.answer
    every_ns = None if answer.every_s is None else round(answer.every_s * NS_PER_S)
    return SchedulePolicy(
        triggers=AnswerTriggerOptions(every_ns, answer.on_change, answer.on_cut is not False),
        query=answer.asked,
        lockstep=not paced(config, info) and config.pipeline.answers == "lockstep",
        source_is_drawn=shows_scenes(config),
        silence_limit_s=config.pipeline.timeout_s,
        connect_limit_s=config.capture.open_timeout_s if answer.server is not None else None,
        shadow_every=answer.shadow_every,
        cancel_on_cut=answer.on_cut == "cancel",
        standing_query=watch_policy(answer.until, holds),
    )


def latency_target(config: Config, info: SourceInfo) -> LatencyController | None:
    """What holds `answer.target_ms`; None where none is set, and in lockstep: what adapts to the clock is off there."""
    if config.answer.target_ms is None or speak_policy(config, info).lockstep:
        return None
    return LatencyController(config.answer.target_ms, config.allocate.budget)


def manners(config: Config, info: SourceInfo, reach: AnswerEndpoint, journal: Journal | None) -> ClientOptions:
    """How the answer stage is spoken with."""
    return ClientOptions(
        encode=config.answer.encode,
        standing_query=config.answer.until.question,
        reconnect=rejoins(config, info),
        resend_after_loss=speak_policy(config, info).lockstep,
        supervised=reach.supervised,
        snapshot=reach.snapshot,
        journal=journal,
    )


def allocator_for(config: Config, info: SourceInfo, hello: ServerHello) -> StreamAllocator:
    """The allocator for a model that has greeted so; `auto` chooses by whether it knows coarse tokens.

    Only frames at a pace of their own are scored on the texture's device: a file gives the same on every backend.

    Raises ModelError where the weights that came with the greeting do not fit.
    """
    allocate = config.allocate
    options = AllocatorOptions(
        strategy=allocate.strategy,
        budget=allocate.budget,
        explore=allocate.explore,
        coverage=allocate.coverage,
        tau_ms=allocate.tau_ms,
        seed=allocate.seed,
        levels=hello.knows_levels,
        on_device=paced(config, info),
    )
    return StreamAllocator(options, deserialize_realiser(hello.allocator, hello.model_id))
