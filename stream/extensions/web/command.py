"""`web` command: a page in which viewers choose what is watched, one source after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import GivenOptions, takes_options
from stream.commands.outcome import INTERRUPTED, exit_status, report_error, report_note
from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.config import Config
    from stream.extension import WatchRequest
    from stream.extensions.web.compare import CompareDesk
    from stream.extensions.web.comparison.messages import ModelChoice
    from stream.extensions.web.comparison.questions import PictureQuestion
    from stream.extensions.web.sink import WebPage
    from stream.extensions.web.sources import ChosenSource, SourceChooser
    from stream.runtime.answer_service import AnswerService
    from stream.runtime.fork_server import ForkServer

RUN_DEFAULTS = {"capture.realtime": True, "pipeline.restart": True}
"""Files play at their own pace, and every run has separate processes: if one fails, the page stays."""


@takes_options
def web(
    address: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[[HOST:]PORT] [NAME=SOURCE]...",
            help="Address of the page, and sources that it offers under their names. [8090]",
            show_default=False,
        ),
    ] = None,
    *,
    options: GivenOptions,
) -> int:
    """Serve a web page in which the source is chosen.

    The page offers the sources named here, the cameras of this machine, the browser's own camera and drawn scenes. A
    choice ends the run before it. Ctrl-C ends the program.
    """
    from stream.config_loading import ConfigLayer

    places = [text for text in address or () if "=" not in text]
    sources = tuple(text for text in address or () if "=" in text)
    if len(places) > 1:
        raise ConfigError(f"one [HOST:]PORT, and each source as NAME=SOURCE; got {', '.join(map(repr, places))}")
    top = [ConfigLayer("[HOST:]PORT", {"web.address": place}) for place in places]
    top += [ConfigLayer("NAME=SOURCE", {"web.sources": sources})] if sources else []
    # not 8080, which is llama.cpp's own
    config = options.configuration(base=[ConfigLayer("web", {"web.address": "8090", **RUN_DEFAULTS})], top=top)
    _check(config)
    return _serve(config)


def _check(config: Config) -> None:
    """Raise ConfigError or ModelError for a configuration that would fail with every source, or makes no sense here."""
    from stream.extensions.web.access import WebAccess
    from stream.sinks.types import output_files

    if config.source:
        raise ConfigError(f"web takes sources as NAME=SOURCE, not as source = {config.source!r}; give one a name")
    paths = [*output_files(config), *filter(None, [config.value("record.folder")])]
    if paths:
        raise ConfigError(f"web writes no files, and {paths[0]!r} would be one; watch the source with `watch`")
    WebAccess.of(config)
    _model_choices(config)
    _picture_questions(config)


def show_demo(config: Config) -> int | None:
    """Show the drawn demo in a page, with the compare page and the microscope beside it; None without `--web`."""
    if config.value("web.address") is None:
        return None
    paged = config.with_values({"output.paths": (), "heatmap.file": None, **RUN_DEFAULTS})
    paged = paged.model_copy(update={"source": ""})
    _check(paged)
    return _serve(paged, demo=True)


def _serve(config: Config, *, demo: bool = False) -> int:
    """Serve the page and run the chosen sources, with `demo` first the drawn demo, until a signal ends the program."""
    from stream.control import signals_handled
    from stream.extensions.web.access import WebAccess
    from stream.extensions.web.camera import CAMERA
    from stream.extensions.web.section import WebSection
    from stream.extensions.web.sink import WebPage
    from stream.extensions.web.sources import DEMO_SCENE, SourceChooser, read_named
    from stream.runtime.answer_service import AnswerService
    from stream.runtime.child import start_fork_server
    from stream.transport import ipc_endpoint, private_directory

    section = WebSection.of(config)
    chooser = SourceChooser(read_named(section.sources), free=section.any_source, browser=WebAccess.of(config).control)
    with ExitStack() as stack:
        stack.enter_context(signals_handled(lambda _: chooser.quit()))
        endpoint = ipc_endpoint(stack.enter_context(private_directory()), CAMERA)
        desk = _compare_desk(config)
        stack.callback(desk.close)
        page_config = config.with_values({"web.camera": endpoint})
        page = stack.enter_context(closing(WebPage(page_config, chooser=chooser, compare=desk, demo=demo)))
        page.print_address()
        if demo:
            chooser.choose(DEMO_SCENE.key)
        forks = start_fork_server()
        if forks is not None:
            stack.enter_context(forks)
        if config.uses_server:
            answers = None
        else:
            answers = AnswerService(config, runs=1, forks=forks)
        answers_stack = stack.enter_context(ExitStack())
        chooser.find_cameras()
        while (choice := chooser.take()) is not None:
            _run(_configured(config, choice, endpoint), choice, chooser, page, answers, answers_stack, forks)
    return INTERRUPTED


def _compare_desk(config: Config) -> CompareDesk:
    """Return the desk of the compare page; its process is started by the first comparison."""
    import os
    import platform
    from importlib.metadata import version

    from stream.extensions.web.access import WebAccess
    from stream.extensions.web.compare import CompareDesk
    from stream.extensions.web.comparison.messages import CompareOptions
    from stream.extensions.web.comparison.process import CompareProcess

    choices = _model_choices(config)
    facts = {
        "version": version("arr-coc-stream"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores, {platform.system()}",
    }
    model_limit = config.value("web.compare_loaded")
    process = CompareProcess(
        CompareOptions(
            choices, config.answer.device, config.answer.dtype, None if model_limit == "auto" else model_limit
        )
    )
    control = WebAccess.of(config).control
    worlds = {choice.name: choice.world for choice in choices}
    return CompareDesk(process, worlds, facts, _picture_questions(config), control=control)


def _picture_questions(config: Config) -> list[PictureQuestion]:
    """Return the questions of `web.compare_questions`. Raises OptionError or ConfigError if the file is unusable."""
    path = config.value("web.compare_questions")
    if path is None:
        return []
    from stream.extensions.web.comparison.questions import read_picture_questions

    return read_picture_questions(Path(path).expanduser())


def _model_choices(config: Config) -> list[ModelChoice]:
    """Return the models to compare: the run's own, or the bundled one if a server answers, and the named ones.

    A folder is shown by its name alone, unless another one has that name. Raises ModelError for an unusable one.
    """
    from stream.answer.loading import model_name
    from stream.answer.model import model_world
    from stream.extensions.web.comparison.messages import NO_ALLOCATOR, ModelChoice

    if config.uses_server:
        config = config.with_values({"answer.model": None, "answer.allocator": None})
    if config.model_key is not None:
        config = config.with_values({config.model_key: None})
    run_answer = config.answer
    pairs = [_model_and_allocator(text, run_answer.model) for text in config.value("web.compare")]
    choices: dict[str, ModelChoice] = {}
    for model, allocator in dict.fromkeys([(run_answer.model, run_answer.allocator), *pairs]):
        folder = None if allocator == NO_ALLOCATOR else allocator
        answer = run_answer.model_copy(update={"model": model, "allocator": folder})
        name = model_name(config.model_copy(update={"answer": answer}))
        full_name = model or name
        if allocator is not None:
            name = f"{name}+{Path(allocator).name}"
            full_name = f"{full_name}+{allocator}"
        if name in choices:
            name = full_name
        choices[name] = ModelChoice(name, model, allocator, model_world(model))
    return list(choices.values())


def _model_and_allocator(text: str, default_model: str | None) -> tuple[str | None, str | None]:
    """Return both parts of MODEL[+ALLOCATOR]; an empty MODEL is `default_model`. The name of a folder may have a +
    in it."""
    if "+" not in text or Path(text).expanduser().is_dir():
        return text, None
    model, _, allocator = text.rpartition("+")
    if not allocator:
        raise ConfigError(f"--compare-model {text!r} names no allocator after the +; give its folder, or none")
    return model or default_model, allocator


def _configured(config: Config, choice: ChosenSource, endpoint: str) -> Config:
    from stream.extensions.web.camera import of_camera
    from stream.sources.address import BROWSER, SCENE_PREFIX

    address = choice.source.address
    if config.value("past.camera") is None:
        config = config.with_values({"past.camera": choice.source.name})
    if address == BROWSER:
        return of_camera(config, endpoint)
    capture = config.capture.model_copy(update={"loop": address.startswith(SCENE_PREFIX)})
    return config.model_copy(update={"source": address, "capture": capture})


def _run(
    config: Config,
    choice: ChosenSource,
    chooser: SourceChooser,
    page: WebPage,
    answers: AnswerService | None,
    answers_stack: ExitStack,
    forks: ForkServer | None,
) -> None:
    """Run the chosen source to its end; errors are shown in the page and on stderr.

    `answers_stack` holds the answer process from the first run on, so that the model stays loaded.
    """
    from arr_coc.errors import ArrCocError, ModelError
    from stream.commands.run import check_run
    from stream.control import describe
    from stream.display import WatchOptions
    from stream.display.choice import open_display
    from stream.errors import StageDied, StreamError
    from stream.events import Summary
    from stream.extensions.web.sink import WebSink
    from stream.monitor.health import RunHandle, RunMonitor
    from stream.runtime.frame_process import run_in_child
    from stream.runtime.session import run_session
    from stream.sinks.types import sink_types
    from stream.sources.address import scrubbed

    def make_run(config: Config) -> RunHandle:
        if answers is not None and answers.pid is None:
            answers_stack.enter_context(answers.hold())
        run = run_in_child(config, control=choice.control, forks=forks, answers=answers)
        chooser.running()
        return run

    # The page replaces the terminal: no live view, no figures, no questions.
    display = open_display(captions=True, watch_options=WatchOptions(None, keyboard=False, live=False))
    report_note(f"watching {choice.source.name}")
    summary: Summary | None = None
    problem: str | None = None
    try:
        check_run(config)
        monitor = RunMonitor(config)
        sink = WebSink(config, monitor, page.camera)
        types = [sink_type for sink_type in sink_types() if sink_type.key == "web.address"]
        summary = run_session(config, display, [sink], make_run, left_out=types, monitor=monitor)
    except (StreamError, ArrCocError) as error:
        problem = str(error)
        if isinstance(error, (ModelError, StageDied)):
            answers_stack.close()  # the next run begins with a new answer process
    except Exception as error:  # the page outlives any failure of a run
        problem = f"unexpected {describe(error)}; this is a bug: `watch --debug` shows where"
    is_interrupted = summary is not None and summary.ended in ("interrupted", "cancelled")
    if problem is not None and not chooser.left:
        report_error(scrubbed(problem, choice.source.address))
    if is_interrupted and not chooser.left:
        chooser.quit()
    chooser.ended(None if summary is None else summary.ended, problem)


def watch_browser(request: WatchRequest) -> int | None:
    """Watch the camera of a viewer of the page, if that is the source. Raises ConfigError."""
    from stream.sources.address import BROWSER

    if BROWSER not in (request.sources or (request.config.source,)):
        return None
    with _browser_camera(request.config, request.sources) as config:
        return exit_status(request.watch_one(config), watching=bool(config.watch))


@contextmanager
def _browser_camera(config: Config, sources: Sequence[str]) -> Iterator[Config]:
    """Give the configuration of a run whose source is a viewer's camera. Raises ConfigError."""
    from stream.extensions.web.access import WebAccess
    from stream.extensions.web.camera import CAMERA, of_camera
    from stream.sources.address import BROWSER
    from stream.transport import ipc_endpoint, private_directory

    if len(sources) > 1:
        raise ConfigError(f"{BROWSER} is watched alone; leave the other sources out")
    if config.value("web.address") is None:
        raise ConfigError(f"{BROWSER} is the camera of a viewer of the page; give --web PORT as well")
    if not WebAccess.of(config).control:
        raise ConfigError(f"{BROWSER} needs viewers who may do more than look; give --web-control as well")
    with private_directory() as folder:
        yield of_camera(config, ipc_endpoint(folder, CAMERA))
