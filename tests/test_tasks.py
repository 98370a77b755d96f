"""Tasks of a new user, each by the commands of its page: only names, addresses, the model and the length are others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import pytest
import tomllib
from mcp import Client, StdioServerParameters

from arr_coc.hub import bundled_model_path
from benchmarks.support.rtsp_server import RtspServer, encode
from stream.cli import main
from stream.scenes import load_scene
from tests.support.models import tiny_folder
from tests.support.mosquitto import broker, subscribed
from tests.support.network import LIMIT_S, free_port, until
from tests.support.runs import RUN_LIMIT_S
from tests.support.video import Image, make_video
from tests.test_doc_commands import BLOCK, COMMANDS, arguments
from tests.test_docs import ROOT

MODEL = {"Qwen/Qwen3-VL-2B-Instruct": str(bundled_model_path())}
"""The bundled model in place of the one that the pages name."""


def words_of(page: str, begin: str, changes: Mapping[str, str] | None = None, *added: str) -> list[str]:
    """Return the words of the first command of a page that begins so, after the program's name.

    Args:
        page: Name of a file in docs/.
        begin: First words, without the program's name.
        changes: Words of the command, or parts of words, and what stands in their places. Each must be there.
        added: Options that make it shorter, or show what it did.
    """
    lines = [arguments(command) for command in COMMANDS if command.page == f"docs/{page}"]
    words = next(line for line in lines if " ".join(line).startswith(begin))
    for old, new in (changes or {}).items():
        assert any(old in word for word in words), f"{page} has no {old} in its command"
        words = [word.replace(old, new) for word in words]
    return [*words, *added]


def blocks_of(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [block for name, block in BLOCK.findall(text) if name == language]


def pictures(count: int, step: int = 2) -> list[Image]:
    """Pictures of the demo scene, 24 ÷ `step` a second: a red circle moves, a blue square stays."""
    scene = load_scene("demo")
    return [scene.render(number * step) for number in range(count)]


@contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, in a folder; it is ended as by Ctrl-C."""
    process = subprocess.Popen([sys.executable, str(ROOT / "run_stream.py"), *words], cwd=folder, text=True)
    with process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) in (0, 130)
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_captions_are_burnt_into_a_film(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_video(tmp_path / "clip.mp4", pictures(24), 12)
    assert main(words_of("films.md", "caption clip.mp4 -o captioned.mp4", None, "--single-process")) == 0
    assert "wrote captioned.mp4" in capsys.readouterr().err
    with av.open("clip.mp4") as clip, av.open("captioned.mp4") as film:
        pairs = list(zip(clip.decode(video=0), film.decode(video=0), strict=True))
    assert len(pairs) == 24
    for before, after in pairs:
        changed = abs(before.to_ndarray(format="gray").astype(int) - after.to_ndarray(format="gray")) > 60
        upper, lower = changed[: len(changed) // 2], changed[len(changed) // 2 :]
        assert lower.sum() > 10 * upper.sum()
        assert lower.sum() > 500


def test_a_camera_has_clips_states_at_the_broker_and_a_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (remember,) = [word for word in words_of("past.md", "caption scene:demo") if word.endswith(".sqlite")]
    monkeypatch.setenv("ARR_COC_MQTT_PASSWORD", "any")
    with RtspServer(encode(pictures(24), 12, gop=6), 12) as camera, broker(tmp_path) as mosquitto:
        changes = {
            **MODEL,
            "rtsp://camera.local/stream": camera.url,
            "homeassistant.local": f"127.0.0.1:{mosquitto.port}",
            "a person": "a red circle",
        }
        shorter = ("--force", "-s", "clips.before_s=1", "-s", "clips.after_s=1", "--remember", remember)
        words = words_of("home-assistant.md", "watch rtsp://camera.local/stream", changes, *shorter)
        with subscribed(mosquitto.port, "arr_coc/front_door/#") as client, running(words, tmp_path):
            seen: dict[str, bytes] = {}
            states: list[bytes] = []
            while not {"match/clip", "answer"} <= seen.keys() or not json.loads(seen["match/clip"]).get("video"):
                message = client.take()
                topic = message.topic.removeprefix("arr_coc/front_door/")
                seen[topic] = message.payload
                states += [message.payload] if topic == "watch/is_there_a_red_circle" else []
    assert b"ON" in states
    assert seen["availability"] == b"online"
    assert json.loads(seen["answer"])["text"]
    video = json.loads(seen["match/clip"])["video"]
    with av.open(str(tmp_path / "clips" / video)) as clip:
        assert len(list(clip.decode(video=0))) > 2
    assert main(words_of("past.md", "search circle")) == 0
    found = capsys.readouterr().out
    assert "is_there_a_red_circle: is there a red circle?" in found
    assert f"clip: {video}" in found


async def asked_by_an_agent(server: StdioServerParameters) -> dict[str, Any]:
    calls: dict[str, dict[str, Any]] = {"list_cameras": {}, "ask": {"question": "What colour is the square?"}}
    async with Client(server) as client:
        results = {name: await client.call_tool(name, given) for name, given in calls.items()}
    return {name: result.content[0].text for name, result in results.items()}  # type: ignore[union-attr]


@pytest.mark.slow
def test_an_agent_and_a_chat_client_ask_a_running_camera(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address = f"http://127.0.0.1:{port}"

    def has_answered() -> bool:
        try:
            with urllib.request.urlopen(f"{address}/api/answers?camera=yard", timeout=LIMIT_S) as reply:
                return '"text"' in reply.read().decode()
        except OSError:
            return False

    with running(words_of("agents.md", "watch yard=scene:demo", {"8090": port}), tmp_path):
        until(has_answered, RUN_LIMIT_S)
        entry = json.loads(blocks_of("agents.md", "json")[0].replace("8090", port))["mcpServers"]["cameras"]
        assert entry["command"] == "arr-coc-stream"
        program = [str(ROOT / "run_stream.py"), *entry["args"]]
        server = StdioServerParameters(command=sys.executable, args=program, env=dict(os.environ))
        replies = asyncio.run(asked_by_an_agent(server))
        exec(blocks_of("agents.md", "python")[0].replace("8090", port), {})
    assert "yard" in replies["list_cameras"]
    assert json.loads(replies["ask"])["answer"]
    assert capsys.readouterr().out.strip()


def test_a_choice_is_one_of_the_words(tmp_path: Path) -> None:
    added = ("--single-process", "-o", "answers.jsonl")
    assert main(words_of("structured-answers.md", "caption scene:demo", None, *added)) == 0
    shown = next(block for block in blocks_of("structured-answers.md", "") if "--choices" in block)
    expected = re.findall(r"^0:0(\d\.\d)  (.*)", shown, re.MULTILINE)
    events = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    answers = [event for event in events if event["type"] == "answer"]
    assert [(f"{event['pts_s']:.1f}", event["text"]) for event in answers][: len(expected)] == expected
    assert [event["fields"] for event in answers] == [{"answer": event["text"]} for event in answers]
    assert len(expected) > 2


@pytest.mark.slow
def test_fields_of_a_schema_reach_the_broker(tmp_path: Path) -> None:
    """Of a model with random weights and all bytes as tokens: what it writes is forced into the form alone."""
    with broker(tmp_path) as mosquitto, subscribed(mosquitto.port, "arr_coc/scene_demo/answer") as client:
        changes = {
            "Qwen/Qwen3-VL-2B-Instruct": str(tiny_folder(tmp_path / "tiny")),
            "rtsp://camera.local/stream": "scene:demo",
            "homeassistant.local": f"127.0.0.1:{mosquitto.port}",
        }
        shorter = ("--max-frames", "2", "-s", "answer.max_tokens=256")
        assert main(words_of("structured-answers.md", "watch rtsp://", changes, *shorter)) == 0
        fields = json.loads(client.take().payload)["fields"]
    assert isinstance(fields["people"], int)
    assert fields["weather"] in ("sun", "rain", "snow")
    assert isinstance(fields["car_waits"], bool)


def test_an_own_loop_reads_a_film(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_video(tmp_path / "door.mp4", pictures(27, step=4), 6)
    (loop,) = [block for block in blocks_of("library.md", "python") if "VideoCapture" in block]
    for old, new in {
        "Is anybody at the door?": "Say what happens.",
        "VideoCapture(0)": "VideoCapture('door.mp4')",
        "time.monotonic()": "camera.get(cv2.CAP_PROP_POS_MSEC) / 1000",
    }.items():
        assert old in loop
        loop = loop.replace(old, new)
    names: dict[str, Any] = {}
    exec("from arr_coc import ARRCOCQwen\n\nmodel = ARRCOCQwen.from_pretrained()\n" + loop, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("a red circle" in line for line in lines), lines
    assert names["stream"].ask("What colour is the square?").text


def test_a_recording_is_made_and_a_run_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of("ros2.md", "caption scene:demo", {"8": "3"}, "--single-process")) == 0
    assert "wrote drive.mcap" in capsys.readouterr().err
    exec(next(block for block in blocks_of("ros2.md", "python") if "make_reader" in block), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["0.0 s", "2.0 s", "3.0 s"]
    assert all("a red circle" in line for line in lines)
    shorter = ("--duration", "2", "--single-process")
    assert main(words_of("measuring.md", "bench scene:demo", {"8s": f"{LIMIT_S}s"}, *shorter)) == 0
    figures = capsys.readouterr().out
    shown = next(block for block in blocks_of("measuring.md", "") if "bench" in block)
    for name in re.findall(r"^(\w+|latency, ms)  ", shown, re.MULTILINE):
        assert re.search(rf"^{name} ", figures, re.MULTILINE), name


@pytest.mark.slow
def test_an_allocator_is_made_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "questions.txt").write_text("Where is the red circle?\nWhat happens?\n")
    fewer = {"80": "10", "512": "96"}
    assert main(words_of("adapt.md", "adapt scene:demo", {"800": "3", **fewer})) == 0
    report = capsys.readouterr()
    shown = next(block for block in blocks_of("adapt.md", "") if "--allocator adapted" in block)
    for line in re.findall(r"^(of that, found with \d+|IoU of as many tiles|wrote \S+)", shown, re.MULTILINE):
        assert line in report.out + report.err
    changes = {**MODEL, "rtsp://camera/1": "scene:demo", "yard-allocator": "adapted"}
    assert main(words_of("adapt.md", "watch rtsp://camera/1", changes, "--max-frames", "2", "-o", "a.jsonl")) == 0
    assert '"type":"answer"' in (tmp_path / "a.jsonl").read_text().replace(" ", "")


def test_an_own_sink_is_written_from_the_page(tmp_path: Path) -> None:
    """The package is made of the page's code alone, and installed as pip leaves it; other parts are left out."""
    extension, section, sink = (
        next(block for block in blocks_of("extensions.md", "python") if begin in block)
        for begin in ("EXTENSION = ", "class CsvSection", "class CsvSink")
    )
    extension = re.sub(r"^    (sources|models|answer_filter|commands)=.*\n", "", extension, flags=re.MULTILINE)
    (table,) = tomllib.loads(blocks_of("extensions.md", "ini")[0])["project"]["entry-points"].items()
    group, parts = table
    files = {
        "arr_coc_csv/__init__.py": extension,
        "arr_coc_csv/section.py": section,
        "arr_coc_csv/sink.py": sink,
        "arr_coc_csv-0.dist-info/METADATA": "Metadata-Version: 2.1\nName: arr-coc-csv\nVersion: 0\n",
        "arr_coc_csv-0.dist-info/entry_points.txt": f"[{group}]\ncsv = {parts['csv']}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = words_of("extensions.md", "caption ball:5", {"ball:5": "scene:demo"}, "--max-frames", "1")
    result = subprocess.run(
        [sys.executable, str(ROOT / "run_stream.py"), *words, "--single-process", "--csv-delimiter", ";"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )
    assert result.returncode == 0, result.stderr
    assert "wrote answers.csv" in result.stderr
    head, first = (tmp_path / "answers.csv").read_text().splitlines()
    assert head == "seconds;text;tokens"
    assert re.fullmatch(r"0\.0;.*a red circle.*;\d+", first), first
