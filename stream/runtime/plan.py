"""Plan of a run: everything that is decided once, from the configuration and the properties of the source."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.glance import KEEP_OVERVIEW, GlanceOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.strategies import Magnification
from arr_coc.allocation.zones import ZoneOptions
from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError
from arr_coc.layer_weights import deserialize_realiser
from arr_coc.texture.store.planes import Thresholds
from arr_coc.types import NEEDS_TOKENS_ONLY, SHOWS_ALL_TILES
from arr_coc.video.texture_updater import TextureOptions
from stream.answer.detections import DetectionReader
from stream.answer.filters import AnswerFilter, Continuation
from stream.answer.model import shows_scenes
from stream.answer.news import NewsFilter
from stream.answer.request import ClientOptions
from stream.answer.scheduler import SchedulePolicy, cancel_off
from stream.answer.structured import StructuredAnswers
from stream.answer.triggers import WatchStates
from stream.clock import Clock
from stream.config import ASSIGNED_SERVERS, CaptureConfig, Config
from stream.errors import ConfigError
from stream.events import Notice
from stream.extension.registry import first_part, parts_of
from stream.media import SourceInfo
from stream.protocol.messages import ServerHello
from stream.sinks.types import is_needed, takes_pictures
from stream.stages.base import BoxFeed, BoxFeeder, RunBudget
from stream.stages.frame_tap import TapPolicy
from stream.stages.newest_frame import AllocatePolicy


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Options of the stages of one run.

    `paced`: frames come at their own pace. `realtime`: capture releases frames at the pace of their media time, as
    a camera would. `drop_frames`: a frame that a stage has no time for is replaced by the next one; else the stage
    before it waits. `restart`: a process that dies or hangs is started again. `budget`: what moves the budget of its
    frames. `notices` list the settings that have no effect in this run. `client`
    lacks the options that depend on the answer server's endpoint, `allocator` those that depend on its model: its
    glance options apply if the model is to glance. `boxes`: a program whose boxes draw tokens. `must_glance`: the model
    is to, whatever allocator comes with it. `served_by` is the address of a remote answer server, and
    `expected_model` the name of the model that it is to serve; None for any.
    """

    paced: bool
    realtime: bool
    drop_frames: bool
    restart: bool
    texture: TextureOptions
    allocator: AllocatorOptions
    allocate: AllocatePolicy
    tap: TapPolicy
    schedule: SchedulePolicy
    client: ClientOptions
    budget: RunBudget
    must_glance: bool
    served_by: str | None
    expected_model: str | None
    notices: tuple[Notice, ...]
    boxes: BoxFeeder | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        info: SourceInfo,
        *,
        continuation: Continuation | None = None,
        watches: WatchStates | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> RunPlan:
        """Makes the plan from the configuration and the source.

        Args:
            config: Configuration of the run.
            info: Properties of the source.
            continuation: What continues an earlier run.
            watches: States of its watches.
            wall_s: Returns the Unix time that schedules count.

        Raises:
            ConfigError: A detector's address cannot be used.
        """
        pipeline = config.pipeline
        answer = config.answer
        paced = info.live or config.capture.realtime
        holds_frames = paced and pipeline.steady and not is_needed(config, "frames at once")
        lockstep = not paced and pipeline.answers == "lockstep"
        if pipeline.restart is None:
            restart = info.live
        else:
            restart = pipeline.restart
        waits_for_server = answer.server is not None and pipeline.restart is None
        schema = answer.schema_of_answers
        no_cancel = answer.on_cut == "cancel" and lockstep
        return cls(
            paced=paced,
            realtime=config.capture.realtime and not info.live,
            drop_frames=paced or pipeline.frames == "newest",
            restart=restart,
            texture=_texture_options(config),
            allocator=_allocator_options(config, paced=paced),
            allocate=_allocate_policy(config, live=info.live, even_intervals=holds_frames),
            tap=_tap_policy(config),
            schedule=_schedule_policy(config, info, watches or WatchStates(), wall_s, lockstep=lockstep),
            client=ClientOptions(
                encode=answer.encode,
                watches=tuple(dict.fromkeys(watch.question for watch in config.watch)),
                reconnect=paced or pipeline.answers == "lockstep" if waits_for_server else restart,
                resend_after_loss=lockstep,
                persistent=paced and answer.server is not None,
                schema=None if schema is None else schema.text,
                filters=_answer_filters(config, info, schema, continuation),
            ),
            budget=RunBudget(tuple(parts_of("budget", config, lockstep=lockstep))),
            must_glance=answer.glance.enabled is True,
            served_by=answer.server,
            expected_model=None if answer.server is None else answer.model,
            boxes=first_part("boxes", config, paced=paced),
            notices=(
                *itertools.chain.from_iterable(parts_of("notices", config, lockstep=lockstep)),
                *([cancel_off()] if no_cancel else []),
                *_schedule_off(config, info),
            ),
        )

    def make_box_feed(self, clock: Clock) -> BoxFeed | None:
        """Return the feed of another program's boxes, None without one."""
        if self.boxes is None:
            return None
        return self.boxes.make_feed(clock, self.allocator.zones)

    def make_allocator(self, hello: ServerHello) -> StreamAllocator:
        """Returns the allocator for a model: `auto` depends on whether the model knows coarse and wide tokens, and
        glances on whether it came with its own allocator.

        Raises ModelError if it is not the expected model, if the weights that came with the hello do not fit, and if it
        must glance and cannot.
        """
        if self.expected_model is not None and PurePath(self.expected_model).name != PurePath(hello.model_id).name:
            raise ModelError(
                f"{self.served_by} serves {hello.model_id}, and answer.model is {self.expected_model}; give "
                f"`serve-answers` there -m {self.expected_model}, or leave answer.model out"
            )
        base_options = self.allocator.for_model(wide=hello.knows_wide)
        options = replace(base_options, glance=self._glance_options(hello), memory=self._group_options(hello))
        realiser = deserialize_realiser(hello.allocator, hello.model_id)
        return StreamAllocator(options, realiser, measures_change=self.schedule.follows_change)

    def _group_options(self, hello: ServerHello) -> GroupOptions | None:
        """Return the options of groups of pictures, which the server's memory limits; None if there are none."""
        if hello.memory_tokens:
            options = self.allocator.memory
        else:
            options = None
        if options is None:
            return None
        return replace(options, tokens=min(options.tokens, hello.memory_tokens))

    def _glance_options(self, hello: ServerHello) -> GlanceOptions | None:
        if self.must_glance and not hello.can_glance:
            raise ModelError(
                f"{hello.model_id} cannot glance: its attention cannot be read; leave --glance out, or name another "
                "model with -m"
            )
        # a model that has never seen coarse tokens looks past an overview of them
        needs_glance = self.must_glance or (hello.knows_levels and not hello.allocator)
        if needs_glance and hello.can_glance:
            return self.allocator.glance
        return None


INTEROP_OFF = "interop-off"
"""Code of the notice that a texture of OpenGL is read back, as the model's GPU cannot read it."""


def texture_interop(config: Config, backend: str) -> tuple[int | None, Notice | None]:
    """Returns the number of the CUDA device that reads an OpenGL texture, None for none; and a notice if the
    model's device cannot."""
    if backend == "gl" and config.texture.interop == "auto":
        device = model_cuda_device(config)
    else:
        device = None
    if device is None:
        return None, None
    from arr_coc.backends.registry import interop_problem

    problem = interop_problem(device)
    if problem is None:
        return device, None
    message = (
        f"the model is on CUDA device {device}, which cannot read the texture of OpenGL, so that is read back "
        f"({problem}); give --backend cuda, or texture.interop = off to have it so"
    )
    return None, Notice(code=INTEROP_OFF, message=message)


def model_cuda_device(config: Config) -> int | None:
    """Returns the number of the CUDA device that a model of this machine runs on, None if it runs on another device."""
    import torch

    kind, _, number = config.answer.device.partition(":")
    if config.uses_server or kind not in ("auto", "cuda") or not torch.cuda.is_available():
        return None
    if number.isdigit():
        return int(number)
    return torch.cuda.current_device()


def _texture_options(config: Config) -> TextureOptions:
    texture = config.texture
    return TextureOptions(
        backend=texture.backend,
        thresholds=Thresholds(texture.mean_threshold, texture.max_threshold),
        lease_timeout_ms=texture.lease_timeout_ms,
        cuts=texture.cut.enabled,
        masks=config.masks,
    )


def _allocator_options(config: Config, *, paced: bool) -> AllocatorOptions:
    """Returns the allocator's options. Only paced frames are scored on the texture's device: files give equal results
    on every backend."""
    allocate = config.allocate
    return AllocatorOptions(
        strategy=allocate.strategy,
        budget=allocate.budget,
        explore=allocate.explore,
        coverage=allocate.coverage,
        tau_ms=allocate.tau_ms,
        seed=allocate.seed,
        wide=None if allocate.wide == "auto" else allocate.wide,
        channels=allocate.channels,
        limits=allocate.limits,
        on_device=paced,
        glance=_glance_options(config),
        memory=_group_options(config),
        zones=_zone_options(config),
        magnification=_magnification(config),
    )


def _magnification(config: Config) -> Magnification | None:
    """Return that of the strategy `fixation`; None for the default. Raises ConfigError for one of another strategy, and
    for `m0` without `e0`."""
    allocate = config.allocate
    e0 = allocate.fixation.e0
    m0 = allocate.fixation.m0
    if e0 is None and m0 is None:
        return None
    if allocate.strategy != "fixation":
        raise ConfigError(
            f"allocate.fixation is of --strategy fixation, and the strategy is {allocate.strategy}; leave one out"
        )
    if e0 is None:
        raise ConfigError("allocate.fixation.m0 means nothing without allocate.fixation.e0; give both, or e0 alone")
    if m0 is None:
        return Magnification(e0)
    return Magnification(e0, m0)


def _zone_options(config: Config) -> ZoneOptions | None:
    """Return None if all tiles count alike. The tiles of a masked zone, which has nothing to show, count for none."""
    weights = tuple(
        (zone.polygon, 0.0 if zone.mask else zone.weight)
        for zone in config.zones.values()
        if zone.mask or zone.weight != 1
    )
    names = {watch.zone for watch in config.watch} | ({config.answer.zone} if not config.watches_only else set())
    # one packet shows what all questions are about: the union of their zones, or the whole picture
    if None not in names:
        polygons = tuple(config.zones[name].polygon for name in sorted(map(str, names)))
    else:
        polygons = ()
    if weights or polygons:
        return ZoneOptions(weights, polygons)
    return None


def _group_options(config: Config) -> GroupOptions | None:
    """Return None if no groups of pictures are kept, by any model."""
    memory = config.answer.memory
    if not config.keeps_groups:
        return None
    return GroupOptions(memory.tokens, memory.seconds, memory.frames, memory.patch)


def _glance_options(config: Config) -> GlanceOptions | None:
    """Return None if no frame is glanced at, with any model."""
    answer = config.answer
    glance = config.answer.glance
    if glance.enabled is False or answer.encode not in NEEDS_TOKENS_ONLY:
        return None
    if answer.overview == "auto":
        keep = KEEP_OVERVIEW
    else:
        keep = answer.overview == "keep"
    return GlanceOptions(glance.tokens, glance.every_s, keep)


def _allocate_policy(config: Config, *, live: bool, even_intervals: bool) -> AllocatePolicy:
    return AllocatePolicy(
        live=live,
        whole_frames=config.answer.encode not in NEEDS_TOKENS_ONLY,
        even_intervals=even_intervals,
        with_reasons=is_needed(config, "reasons"),
        learns=config.answer.feedback,
    )


def _tap_policy(config: Config) -> TapPolicy:
    return TapPolicy(
        maps=is_needed(config, "maps"),
        answer_pictures=takes_pictures(config),
        interval_frames=config.output.pictures_every if takes_pictures(config, all_frames=True) else None,
        layers=config.value("heatmap.layers"),
        all_tiles=config.answer.encode in SHOWS_ALL_TILES,
    )


def _schedule_policy(
    config: Config, info: SourceInfo, watches: WatchStates, wall_s: Callable[[], float], *, lockstep: bool
) -> SchedulePolicy:
    answer = config.answer
    return SchedulePolicy(
        answer=answer,
        query=config.first_question,
        lockstep=lockstep,
        source_is_drawn=shows_scenes(config),
        silence_limit_s=config.pipeline.timeout_s,
        connect_limit_s=None if answer.server in (None, ASSIGNED_SERVERS) else config.capture.open_timeout_s,
        glances=_glance_options(config) is not None,
        memory=config.keeps_groups,
        memory_required=config.requires_groups,
        idle_share=answer.memory.idle_share(LOCKSTEP_SHARE) if config.keeps_groups else 0.0,
        watches=config.watch,
        states=watches,
        watches_only=config.watches_only,
        wall_s=wall_s if info.live else None,
        askers=partial(parts_of, "asker"),
    )


LOCKSTEP_SHARE = 0.25
"""Share of media time for idle work in lockstep by `auto`, on every device: results do not depend on it."""


def _answer_filters(
    config: Config, info: SourceInfo, schema: AnswerSchema | None, continuation: Continuation | None
) -> tuple[AnswerFilter, ...]:
    """Return what the features of a run make of its answers, in order: the form of an answer first, then whether it is
    news, and what it locates; last what keeps it."""
    answer = config.answer
    filters: list[AnswerFilter] = []
    if schema is not None:
        filters.append(StructuredAnswers(schema))
    if answer.when == "news":
        filters.append(NewsFilter(answer.same_above, schema))
    filters.append(DetectionReader(_source_px(config.capture, info)))
    filters += parts_of("answer_filter", config)
    if continuation is not None:
        filters.append(continuation)
    return tuple(filters)


def _source_px(capture: CaptureConfig, info: SourceInfo) -> tuple[int, int] | None:
    """Return width and height of the source's picture if its frames are scaled, else None."""
    scaled = capture.fit == "resize" or capture.size is not None or capture.max_tiles is not None
    if scaled and min(info.width_px, info.height_px) > 0:
        return (info.width_px, info.height_px)
    return None


SCHEDULE_OFF = "schedule-off"
"""Code of the notice that schedules of watches do not count for this source."""


def _schedule_off(config: Config, info: SourceInfo) -> list[Notice]:
    """Return the notice that schedules do not count, if there are any and the source is not live."""
    names = [watch.name for watch in config.watch if watch.schedule is not None]
    if info.live or not names:
        return []
    text = f"no schedules ({', '.join(names)}): the source is not live, so its frames have no time of day"
    return [Notice(code=SCHEDULE_OFF, message=text)]
