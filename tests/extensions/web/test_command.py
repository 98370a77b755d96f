"""`web` runs the sources that viewers choose, one after another, and outlives each of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

import stream.extensions.web.command as command
from arr_coc.hub import bundled_model_path
from arr_coc.model import ARRCOCQwen
from stream.cli import main
from stream.config import AnswerConfig, Config
from stream.control import RunControl
from stream.extensions.api.section import ApiSection
from stream.extensions.past.section import PastSection
from stream.extensions.web.section import WebSection
from stream.extensions.web.sources import ChosenSource, OfferedSource
from stream.sources.address import BROWSER
from tests.support.models import tiny_folder
from tests.support.network import LIMIT_S
from tests.support.web import PageClient

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("8080", "9090"), "one [HOST:]PORT"),
        (("x",), "--web needs a port or HOST:PORT"),
        (("0.0.0.0:8080",), "--web-token auto"),
        (("0", "=clip.mp4"), "NAME=SOURCE"),
        (("0", "a=1", "a=2"), "two sources are called 'a'"),
        (("0", "-s", "source=clip.mp4"), "NAME=SOURCE, not as source = 'clip.mp4'"),
        (("0", "-s", "why.file=why.jsonl"), "writes no files"),
        (("0", "-m", "/no/such/folder"), "/no/such/folder"),
        (("0", "--compare-model", "/no/such/folder"), "/no/such/folder"),
        (("0", "--compare-model", "+/no/such/folder"), "no allocator: there is no folder /no/such/folder"),
        (("0", "--compare-model", "owner/model+"), "names no allocator after the +"),
        (("0", "--compare-loaded", "0"), "--compare-loaded"),
        (("0", "--compare-questions", "/no/such.jsonl"), "cannot read /no/such.jsonl: No such file or directory; give"),
    ],
)
def test_a_page_that_cannot_be_is_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["web", *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("address", ["rtsp://yard.local/stream", "scene:demo", BROWSER])
def test_a_source_is_remembered_under_its_name(address: str) -> None:
    choice = ChosenSource(OfferedSource("named", "yard", address), RunControl())
    config = Config(past=PastSection(file="past.sqlite"))
    assert command._configured(config, choice, "ipc://camera").value("past.camera") == "yard"
    named_config = Config(past=PastSection(file="past.sqlite", camera="gate"))
    assert command._configured(named_config, choice, "ipc://camera").value("past.camera") == "gate"


def test_models_to_compare_are_shown_by_short_names_that_differ(tmp_path: Path) -> None:
    folders = [tiny_folder(tmp_path / place / "tuned") for place in ("a", "b")]
    web = WebSection(address="0", compare=(*map(str, folders), "owner/model", "owner/model"))
    choices = command._model_choices(Config(web=web))
    assert [choice.name for choice in choices[1:]] == ["tuned", str(folders[1]), "owner/model"]
    assert [choice.model for choice in choices] == [None, *map(str, folders), "owner/model"]
    api = ApiSection(url="http://127.0.0.1:9/v1")
    for remote_config in (
        Config(answer=AnswerConfig(server="tcp://10.0.0.2:5555")),
        Config(answer=AnswerConfig(model="gpt", encode="picture"), api=api),
    ):
        assert [choice.model for choice in command._model_choices(remote_config)] == [None]


def trained_allocator(folder: Path) -> Path:
    ARRCOCQwen.from_pretrained().qwen.allocator.save_pretrained(folder)
    return folder


def test_allocators_of_one_model_are_columns_of_their_own(tmp_path: Path) -> None:
    yard = trained_allocator(tmp_path / "yard")
    plus = tiny_folder(tmp_path / "a+b")
    pairs = ("+none", f"+{yard}", f"{plus}+none", str(plus), f"+{yard}")
    answer_config = AnswerConfig(allocator=str(yard))
    choices = command._model_choices(Config(answer=answer_config, web=WebSection(address="0", compare=pairs)))
    assert [(choice.name, choice.model, choice.allocator) for choice in choices] == [
        ("scenes-tiny+yard", None, str(yard)),
        ("scenes-tiny+none", None, "none"),
        ("a+b+none", str(plus), "none"),
        ("a+b", str(plus), None),
    ]
    assert [choice.world for choice in choices] == ["drawn scenes", "drawn scenes", None, None]


def test_the_runs_own_model_named_again_keeps_its_allocator(tmp_path: Path) -> None:
    yard = trained_allocator(tmp_path / "yard")
    model = str(bundled_model_path())
    answer = AnswerConfig(model=model, allocator=str(yard))
    choices = command._model_choices(Config(answer=answer, web=WebSection(address="0", compare=(model,))))
    assert [(choice.name, choice.allocator) for choice in choices] == [
        ("scenes-tiny+yard", str(yard)),
        ("scenes-tiny", None),
    ]


@contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], PageClient]]:
    """The command, and a viewer of its page."""
    command = [sys.executable, str(ROOT / "run_stream.py"), "web", "0", *arguments]
    command += ["-m", str(tiny_folder(tmp_path)), "--set", "answer.max_tokens=4"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            match = re.match(r"web page at http://(127\.0\.0\.1:\d+)/", child.stderr.readline())
            assert match is not None
            with connect(f"ws://{match[1]}/live", max_size=None, compression=None) as socket:
                yield child, PageClient(socket)
        finally:
            child.terminate()
            child.communicate(timeout=LIMIT_S)


def state(viewer: PageClient, name: str) -> dict[str, Any]:
    while (message := viewer.next("sources"))["state"] != name:
        pass
    return message


@pytest.mark.slow
def test_sources_are_run_one_after_another_and_a_bad_one_ends_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "gone=/no/such.mp4", "link=rtsp://me:secretive@127.0.0.1:9/1") as (child, viewer):
        offered = [source["name"] for source in state(viewer, "idle")["offered"]]
        assert offered[:3] == ["gone", "link", "this browser’s camera"]
        viewer.send(choose="named/gone")
        state(viewer, "opening")
        assert "/no/such.mp4 does not exist" in state(viewer, "idle")["error"]
        viewer.send(choose="named/link")
        state(viewer, "opening")
        error = state(viewer, "idle")["error"]
        assert "rtsp://***@127.0.0.1:9/1" in error
        assert "secretive" not in error

        viewer.send(choose="scene/moving")
        state(viewer, "running")
        viewer.picture()
        viewer.next("answer")
        viewer.send(choose="browser/this browser’s camera")  # waits for a camera that no viewer allows
        state(viewer, "opening")
        while not viewer.next("hello")["browser_camera"]:
            pass
        viewer.send(choose="scene/demo")
        assert state(viewer, "running")["now"]["name"] == "demo"
        viewer.pictures.clear()
        viewer.send(ok=1)
        viewer.picture()  # before the first one, the run may not take questions yet
        viewer.send(ask="where?")
        assert viewer.next("asked")["query"] == "where?"
        viewer.send(stop=True)
        message = state(viewer, "idle")
        assert message["now"] is None
        assert message["error"] is None
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT_S) == 130


@pytest.mark.slow
def test_ctrl_c_during_a_run_ends_the_program_in_good_order(tmp_path: Path) -> None:
    with serving(tmp_path) as (child, viewer):
        viewer.send(choose="scene/moving")
        state(viewer, "running")
        viewer.next("answer")
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT_S) == 130
