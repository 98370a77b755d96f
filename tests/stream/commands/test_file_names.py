"""Names of files that are no UTF-8: every byte that the file system allows works, and is shown escaped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream.cli import main
from stream.config import AnswerConfig, Config, WatchConfig, ZoneConfig
from stream.extensions.clips.section import ClipsSection
from stream.extensions.record.section import RecordSection
from stream.sources.address import name_of, redacted
from tests.support.video import make_video, moving_square

LATIN = "caf\udce9"
"""As Python reads the bytes `caf\\xe9`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of such a name, with a video of such a name."""
    folder = tmp_path / LATIN
    folder.mkdir()
    make_video(tmp_path / "clip.mp4", moving_square(5)).rename(folder / f"{LATIN}.mp4")
    assert os.listdir(os.fsencode(folder)) == [b"caf\xe9.mp4"]
    return folder


def test_a_file_is_captioned_recorded_and_replayed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clip, captions, record = (str(folder / f"{LATIN}{suffix}") for suffix in (".mp4", ".jsonl", ".record"))
    assert main(["caption", clip, "-o", captions, "--record", record]) == 0
    assert main(["replay", record]) == 0
    out, err = capfd.readouterr()
    assert "all the same" in out + err
    assert "/caf\\xe9/caf\\xe9.jsonl" in out + err
    assert '"source":"' + str(folder.parent) + '/caf\\\\xe9/caf\\\\xe9.mp4"' in Path(captions).read_text()


def test_a_file_is_watched_in_a_process_and_remembered(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clip, past, clips, reasons = (
        str(folder / f"{LATIN}{suffix}") for suffix in (".mp4", ".sqlite", ".clips", ".jsonl")
    )
    outputs = ["--remember", past, "--clips", clips, "--why", reasons]
    assert main(["watch", clip, *outputs, "-q", "what?", "--watch", "is it red?", "--force"]) == 0
    assert main(["search", "red", past]) == 0
    out, err = capfd.readouterr()
    assert "caf\\xe9.mp4" in out
    assert "no more moments" not in err
    assert any(name.endswith(".jpg") for name in os.listdir(clips))
    assert Path(reasons).stat().st_size


def test_a_folder_of_pictures_names_what_it_skips(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / f"{LATIN}.mp4").unlink()
    make_video(folder.parent / "a.png", moving_square(1), codec="png", pixel_format="rgb24").rename(folder / "a.png")
    (folder / f"b{LATIN}.png").write_bytes(b"no picture")
    assert main(["caption", str(folder)]) == 0
    out, err = capfd.readouterr()
    assert "/caf\\xe9/bcaf\\xe9.png" in out + err


def test_a_configuration_reaches_another_process_as_it_is() -> None:
    config = Config(
        source=f"/tmp/{LATIN}.mp4",
        answer=AnswerConfig(model=LATIN, query="Was \U0001f642?"),
        record=RecordSection(folder=LATIN),
        clips=ClipsSection(folder=LATIN),
        watch=(WatchConfig(name="a", question="is it red?"),),
        zones={"door": ZoneConfig(points=((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)), mask=True)},
    )
    text = config.encode()
    assert text.isascii()
    assert Config.decode(text) == config


def test_a_source_is_named_by_what_can_be_shown() -> None:
    assert redacted(f"/a/{LATIN}.mp4") == "/a/caf\\xe9.mp4"
    assert name_of(f"/a/{LATIN}.mp4") == "caf\\xe9.mp4"
