"""What makes two runs the same: contents and settings, not places and times."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stream.config import (
    AllocateConfig,
    AnswerConfig,
    Config,
    NetworkConfig,
    OutputConfig,
    PipelineConfig,
    TextureConfig,
)
from stream.identity import SAMPLE_BYTES, SAMPLES, fingerprint, identity_of


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(bytes(range(256)) * 10)
    return path


def identity(source: object, **sections: object) -> dict[str, str]:
    made = identity_of(Config.model_validate({"source": str(source), **sections}))
    assert made is not None
    return made


def test_a_copy_is_the_same_source_and_an_edited_file_is_another(clip: Path, tmp_path: Path) -> None:
    before = identity(clip)
    (tmp_path / "copy").mkdir()
    copy = shutil.copy(clip, tmp_path / "copy")
    os.utime(copy, (1, 1))
    assert identity(copy) == before
    clip.write_bytes(b"\x01" + clip.read_bytes()[1:])
    changed = identity(clip)
    assert {key for key in before if before[key] != changed[key]} == {"source"}


@pytest.mark.parametrize(
    "sections",
    [
        {"answer": AnswerConfig(query="Who?")},
        {"answer": AnswerConfig(every_s=None)},
        {"answer": AnswerConfig(temperature=0.5)},
        {"answer": AnswerConfig(dtype="bfloat16")},
        {"allocate": AllocateConfig(budget=12)},
        {"allocate": AllocateConfig(strategy="grid")},
        {"capture": {"max_frames": 3}},
        {"texture": {"cut": {"enabled": False}}},
    ],
)
def test_what_changes_answers_is_told_by_its_key(clip: Path, sections: dict[str, object]) -> None:
    before, after = identity(clip), identity(clip, **sections)
    (differing,) = (key for key in before if before[key] != after[key])
    assert differing.split(".")[0] in sections


def test_what_changes_no_answer_is_left_out(clip: Path) -> None:
    harmless = {
        "output": OutputConfig(paths=("a.vtt",), timing=False, metrics_port=9000),
        "network": NetworkConfig(plain_tcp=True),
        "texture": TextureConfig(backend="gl"),
        "pipeline": PipelineConfig(timeout_s=1.0, heartbeat_s=1.0, restart_limit=9, restart=False),
    }
    assert identity(clip, **harmless) == identity(clip)


def test_a_model_is_known_by_its_files(clip: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    named = {"answer": AnswerConfig(model=str(model))}
    before = identity(clip, **named)
    (model / "README.md").write_text("read me", encoding="utf-8")
    assert identity(clip, **named) == before
    (model / "model.safetensors").write_bytes(b"weightz")
    assert identity(clip, **named)["model"] != before["model"] != identity(clip)["model"]
    assert identity(clip, answer=AnswerConfig(model="owner/name"))["model"] == "owner/name"


def test_scenes_and_folders_can_be_read_twice_but_nothing_live(tmp_path: Path) -> None:
    assert identity("scene:demo")["source"] == "scene:demo"
    (tmp_path / "1.png").write_bytes(b"one")
    one = identity(tmp_path)["source"]
    (tmp_path / "2.png").write_bytes(b"two")
    assert one != identity(tmp_path)["source"]
    os.mkfifo(tmp_path / "pipe")
    for source in ("-", "0", "rtsp://camera/1", str(tmp_path / "pipe"), str(tmp_path / "absent"), "a\0b"):
        assert identity_of(Config(source=source)) is None, source


def test_a_large_file_is_sampled_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "large"
    size = SAMPLES * SAMPLE_BYTES * 2
    with path.open("wb") as file:
        file.truncate(size)
    seen = {fingerprint(path)}
    for place in (0, (size - SAMPLE_BYTES) * 7 // (SAMPLES - 1), size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\x01")
        seen.add(fingerprint(path))
    assert len(seen) == 4
