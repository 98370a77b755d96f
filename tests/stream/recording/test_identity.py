"""Provenance of answers and fingerprints of runs, encoded and decoded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stream.config import (
    AllocateConfig,
    AnswerConfig,
    Config,
    IncrementalConfig,
    MemoryConfig,
    NetworkConfig,
    OutputConfig,
    PipelineConfig,
    TextureConfig,
)
from stream.recording.identity import (
    SAMPLE_BYTES,
    SAMPLES,
    answer_provenance,
    fingerprint,
    model_fingerprint,
    run_fingerprint,
)
from tests.support.sections import sections

CONFIG = Config(
    source="rtsp://user:secret@camera/stream",
    answer=AnswerConfig(
        query="Where?",
        thinking="hide",
        encode="incremental",
        incremental=IncrementalConfig(share=0.3, every_frames=None),
        memory=MemoryConfig(frames=3, patch=True),
        temperature=0.5,
        max_tokens=9,
        server="tcp://10.0.0.2:5555",
    ),
)


def test_private_settings_are_not_reported() -> None:
    provenance = answer_provenance(CONFIG)
    assert not any(secret in provenance for secret in ("secret", "10.0.0.2", "Where?"))


def test_a_copy_has_the_same_weights_and_other_files_beside_them_do_not_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "arr_coc").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "README.md").write_text(name, encoding="utf-8")
        (tmp_path / name / "arr_coc" / "weights.safetensors").write_text(name, encoding="utf-8")
    assert model_fingerprint(str(tmp_path / "one")) == model_fingerprint(str(tmp_path / "two"))
    (tmp_path / "two" / "model.safetensors").write_bytes(b"weighty")
    assert model_fingerprint(str(tmp_path / "one")) != model_fingerprint(str(tmp_path / "two"))


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(bytes(range(256)) * 10)
    return path


def identity(source: object, **sections: object) -> dict[str, str]:
    values = run_fingerprint(Config.model_validate({"source": str(source), **sections}))
    assert values is not None
    return values


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
        {"answer": AnswerConfig(decoding="checkpoint")},
        {"answer": AnswerConfig(repetition_penalty=1.05)},
        {"answer": AnswerConfig(stop_loops=False)},
        {"answer": AnswerConfig(dtype="bfloat16")},
        {"allocate": AllocateConfig(budget=12)},
        {"allocate": AllocateConfig(strategy="grid")},
        {"capture": {"max_frames": 3}},
        {"texture": {"cut": {"enabled": False}}},
    ],
)
def test_options_that_change_answers_are_reported_by_key(clip: Path, sections: dict[str, object]) -> None:
    before, after = identity(clip), identity(clip, **sections)
    (difference,) = (key for key in before if before[key] != after[key])
    assert difference.split(".")[0] in sections


def test_options_that_change_no_answer_are_left_out(clip: Path) -> None:
    harmless = {
        "output": OutputConfig(paths=("a.vtt",), timing=False),
        **sections(metrics__port=9000),
        "network": NetworkConfig(plain_tcp=True),
        "texture": TextureConfig(backend="gl"),
        "answer": AnswerConfig(cache_weights=True),
        "pipeline": PipelineConfig(timeout_s=1.0, heartbeat_s=1.0, restart_limit=9, restart=False),
    }
    assert identity(clip, **harmless) == identity(clip)


def test_a_model_is_known_by_its_files(clip: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    sections = {"answer": AnswerConfig(model=str(model))}
    before = identity(clip, **sections)
    (model / "README.md").write_text("read me", encoding="utf-8")
    assert identity(clip, **sections) == before
    (model / "model.safetensors").write_bytes(b"weightz")
    assert identity(clip, **sections)["model"] != before["model"] != identity(clip)["model"]
    assert identity(clip, answer=AnswerConfig(model="owner/name"))["model"] == "owner/name"


def test_scenes_and_folders_can_be_read_twice_but_nothing_live(tmp_path: Path) -> None:
    assert identity("scene:demo")["source"] == "scene:demo"
    (tmp_path / "1.png").write_bytes(b"one")
    before = identity(tmp_path)["source"]
    (tmp_path / "2.png").write_bytes(b"two")
    assert before != identity(tmp_path)["source"]
    os.mkfifo(tmp_path / "pipe")
    for source in ("-", "0", "rtsp://camera/1", str(tmp_path / "pipe"), str(tmp_path / "absent"), "a\0b"):
        assert run_fingerprint(Config(source=source)) is None, source


def test_a_large_file_is_sampled_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "large"
    size = SAMPLES * SAMPLE_BYTES * 2
    with path.open("wb") as file:
        file.truncate(size)
    fingerprints = {fingerprint(path)}
    for place in (0, (size - SAMPLE_BYTES) * 7 // (SAMPLES - 1), size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\x01")
        fingerprints.add(fingerprint(path))
    assert len(fingerprints) == 4
