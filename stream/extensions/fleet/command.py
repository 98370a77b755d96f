"""`fleet` command, and `watch NAME=SOURCE…`: several cameras at once, and the exit status of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from arr_coc.errors import ArrCocError, counted
from stream.commands.options import (
    REALTIME,
    STATS_EVERY,
    AskStdin,
    ForTime,
    GivenOptions,
    StatsEvery,
    limits_of,
    takes_options,
    text_option,
)
from stream.commands.outcome import BAD_INPUT, FAILED, INTERRUPTED, exit_status, report_error, report_note
from stream.errors import ConfigError, StreamError

if TYPE_CHECKING:
    from stream.config import Config
    from stream.config_loading import ConfigLayer
    from stream.display import WatchOptions
    from stream.extension import WatchRequest
    from stream.extensions.fleet.cameras import NamedCamera
    from stream.extensions.fleet.file import FleetFile
    from stream.extensions.fleet.on_ray.settings import RaySettings
    from stream.extensions.fleet.run import CameraOutcome, Fleet
    from stream.extensions.fleet.vllm import VllmPlace, VllmServer, VllmSettings
    from stream.sinks.base import Display

ENGINES = ("transformers", "vllm")
"""What answers for the cameras: answer processes of this program, or a vLLM server."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Ray cluster that cameras are to be on: its address, and what they need of its nodes."""

    address: str
    settings: RaySettings


@dataclass(frozen=True, slots=True)
class VllmChoice:
    """vLLM server that is to answer: its settings and its place."""

    settings: VllmSettings
    place: VllmPlace


@takes_options
def fleet(
    file: Annotated[str, typer.Argument(metavar="FILE", help="TOML file with a table [cameras.NAME] for each camera.")],
    for_time: ForTime = None,
    stats_every: StatsEvery = STATS_EVERY,
    ask_stdin: AskStdin = False,
    ray: Annotated[
        str | None,
        text_option(
            "--ray", metavar="ADDRESS", help="Spread the cameras over a Ray cluster: HOST:PORT, or auto. [off]"
        ),
    ] = None,
    engine: Annotated[
        str,
        text_option(
            "--engine",
            metavar="NAME",
            help="transformers: answer here. vllm: start a vLLM server for all. [transformers]",
        ),
    ] = "transformers",
    *,
    options: GivenOptions,
) -> int:
    """Watch the cameras of a file at once, with one model.

    Each camera has its own source, question and outputs in the file. Options hold for all, and win over the file.
    """
    from stream.config_loading import ConfigLayer
    from stream.display import WatchOptions
    from stream.extensions.fleet.file import read_fleet

    limit_s, every_s = limits_of(for_time, stats_every)
    fleet_file = read_fleet(file)
    vllm = _vllm_choice(engine, fleet_file, ray)
    configs: dict[str, Config] = {}
    problems = dict(fleet_file.problems)
    for name, layers in fleet_file.cameras.items():
        base = [ConfigLayer("fleet", REALTIME), *fleet_file.common, *layers]
        try:
            config = options.configuration(base=base)
            if vllm is not None and not config.uses_server:
                config = options.configuration(base=[*base, _vllm_layer(config, vllm.place)])
            configs[name] = config
        except ConfigError as error:
            problems[name] = str(error)
    if not configs and len(reasons := set(problems.values())) == 1:
        raise ConfigError(reasons.pop())
    watch_options = WatchOptions(every_s, ask_stdin, live=not options["debug"])
    if ray is None:
        cluster = None
    else:
        cluster = ClusterPlace(ray, fleet_file.ray)
    return watch_together(configs, problems, limit_s=limit_s, watch_options=watch_options, cluster=cluster, vllm=vllm)


def _vllm_choice(engine: str, fleet_file: FleetFile, ray: str | None) -> VllmChoice | None:
    """Return the vLLM server that `--engine` asks for; None for `transformers`. Raises ConfigError for another
    engine, or if the server cannot be placed."""
    from stream.extensions.fleet.vllm import VllmPlace

    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine} is none of {', '.join(ENGINES)}")
    if engine != "vllm":
        return None
    return VllmChoice(fleet_file.vllm, VllmPlace.of(fleet_file.vllm, ray, fleet_file.ray.servers))


def _vllm_layer(config: Config, place: VllmPlace) -> ConfigLayer:
    """Return the settings of a camera that a vLLM server at a place answers for."""
    from arr_coc.hub import bundled_model_path
    from stream.config_loading import ConfigLayer

    model = config.answer.model or str(bundled_model_path())
    values = {"api.url": place.url, "api.picture": "tokens", "answer.model": model}
    return ConfigLayer("--engine vllm", values)


def watch_cameras(request: WatchRequest) -> int | None:
    """Watch several cameras, given as NAME=SOURCE, with one model."""
    from stream.extensions.fleet.cameras import is_named

    if not any(map(is_named, request.sources)):
        return None
    return watch_named(request.config, request.sources, limit_s=request.limit_s, watch_options=request.options)


def watch_named(config: Config, arguments: Sequence[str], *, limit_s: float | None, watch_options: WatchOptions) -> int:
    """Watch the sources of NAME=SOURCE at once; return the exit status.

    A camera that cannot be watched is reported, and the others are.

    Args:
        config: Configuration of every camera, but for the source.
        arguments: Cameras as NAME=SOURCE.
        limit_s: Time after which the run ends, in seconds; None without a limit.
        watch_options: Options of the display.

    Raises:
        ConfigError: The names cannot be used, or as `watch_together`.
    """
    from stream.extensions.fleet.cameras import read_named

    sources = read_named(arguments)
    configs = {name: config.model_copy(update={"source": source}) for name, source in sources.items()}
    return watch_together(configs, {}, limit_s=limit_s, watch_options=watch_options)


def watch_together(
    configs: Mapping[str, Config],
    problems: Mapping[str, str],
    *,
    limit_s: float | None,
    watch_options: WatchOptions,
    cluster: ClusterPlace | None = None,
    vllm: VllmChoice | None = None,
) -> int:
    """Watch cameras at once, each with its configuration; return the exit status of all.

    Args:
        configs: Configuration of each camera, by name.
        problems: Problems of other cameras, by name, which are reported.
        limit_s: Time after which the run ends, in seconds; None without a limit.
        watch_options: Options of the display.
        cluster: Ray cluster whose nodes run the cameras; this machine runs them without it.
        vllm: vLLM server to start, for the cameras whose configurations name its address.

    Raises:
        ConfigError: Two cameras would write one file, or the cluster or the server cannot be used.
    """
    from stream.commands.run import output_for
    from stream.extensions.fleet.cameras import NamedCamera, check_together

    cameras: list[NamedCamera] = []
    for name, config in configs.items():
        sections = {key: section.for_camera(name) for key, section in config.sections().items()}
        cameras.append(NamedCamera(name, output_for(config.model_copy(update=sections), name, is_camera=True)))
    check_together(cameras)
    problems_by_name = dict(problems)
    for problem in problems.values():
        report_error(problem)
    ready: list[NamedCamera] = []
    for camera in cameras:
        if (reason := _problem_of(camera, remote=cluster is not None)) is None:
            ready.append(camera)
        else:
            problems_by_name[camera.name] = reason
            report_error(f"{camera.name}: {reason}")
    if not ready:
        return BAD_INPUT
    outcomes = _run_all(ready, problems_by_name, limit_s, watch_options, cluster, vllm)
    _report_written(ready)
    report_note(_last_line(outcomes, len(problems_by_name)))
    return _status(ready, outcomes, refused=bool(problems_by_name))


def _run_all(
    cameras: list[NamedCamera],
    problems: Mapping[str, str],
    limit_s: float | None,
    watch_options: WatchOptions,
    place: ClusterPlace | None,
    vllm: VllmChoice | None,
) -> list[CameraOutcome]:
    from stream.display.choice import open_display
    from stream.sinks.paths import STDOUT

    if vllm is None:
        server = None
    else:
        from stream.extensions.fleet.vllm import VllmServer

        configs = [camera.config for camera in cameras if camera.config.value("api.url") == vllm.place.url]
        if configs:
            server = VllmServer(configs, vllm.settings, vllm.place)
        else:
            server = None

    captions = not any(STDOUT in camera.config.output.paths for camera in cameras)
    display = open_display([camera.name for camera in cameras], captions=captions, watch_options=watch_options)
    try:
        if place is None:
            from stream.extensions.fleet.run import Fleet

            return _answered(Fleet(cameras, display, limit_s=limit_s, refused=problems), server, display)

        from stream.extensions.fleet.on_ray.cluster import RayCluster
        from stream.extensions.fleet.on_ray.run import ClusterFleet

        with closing(RayCluster(place.address)) as cluster:
            fleet = ClusterFleet(cameras, display, cluster, place.settings, limit_s=limit_s, refused=problems)
            return _answered(fleet, server, display)
    finally:
        display.close()


def _answered(fleet: Fleet, server: VllmServer | None, display: Display) -> list[CameraOutcome]:
    """Run a fleet, with the server that answers for it, if it has one."""
    if server is None:
        return fleet.run()
    with server.running(fleet.controls, display.show_note):
        return fleet.run()


def _problem_of(camera: NamedCamera, *, remote: bool) -> str | None:
    """Return why a camera cannot be watched, None if no problem is known; `remote`: on another machine."""
    from stream.commands.run import check_run
    from stream.extensions.fleet.cameras import check_camera
    from stream.extensions.fleet.on_ray.settings import check_far
    from stream.sources.address import scrubbed

    try:
        check_camera(camera.config)
        check_run(camera.config, remote=remote)
        if remote:
            check_far(camera.config)
    except (ArrCocError, StreamError) as error:
        return scrubbed(" ".join(str(error).split()), camera.config.source)
    return None


def _report_written(cameras: Sequence[NamedCamera]) -> None:
    from stream.commands.run import also_written, report_written

    configs = [camera.config for camera in cameras]
    paths = [path for config in configs for path in (*config.output.paths, *also_written(config))]
    report_written(list(dict.fromkeys(paths)))


def _last_line(outcomes: Sequence[CameraOutcome], refused: int) -> str:
    """Return how the cameras ended: `3 cameras: 2 interrupted, 1 failed (yard)`."""
    from stream.control import ELAPSED, FOUND

    words = {ELAPSED: "ended after --for", FOUND: "found it"}
    ends: dict[str, list[str]] = {}
    for outcome in outcomes:
        is_failure = outcome.error is not None
        if is_failure:
            end = "failed"
        else:
            end = "interrupted" if outcome.summary is None else outcome.summary.ended
        ends.setdefault(end, []).append(outcome.camera)
    parts = []
    for end, names in sorted(ends.items()):
        parts.append(f"{len(names)} {words.get(end, end)}")
        if end == "failed":
            parts[-1] += f" ({', '.join(names)})"
    if refused:
        parts.append(f"{refused} not begun")
    return f"{counted(len(outcomes) + refused, 'camera')}: {', '.join(parts)}"


def _status(cameras: Sequence[NamedCamera], outcomes: Sequence[CameraOutcome], *, refused: bool) -> int:
    """Return 1 if a camera failed or was not begun, 2 if none could begin; else 130 after Ctrl-C, and with a
    standing query 0 if one camera found it."""
    errors = [outcome.error for outcome in outcomes]
    if all(isinstance(error, (ArrCocError, StreamError)) and error.user_fixable for error in errors):
        return BAD_INPUT
    if refused or any(error is not None for error in errors):
        return FAILED
    statuses = [
        INTERRUPTED if outcome.summary is None else exit_status(outcome.summary, watching=bool(camera.config.watch))
        for camera, outcome in zip(cameras, outcomes, strict=True)
    ]
    if INTERRUPTED in statuses:
        return INTERRUPTED
    return min(statuses)
