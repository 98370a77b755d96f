"""What answers depend on, told and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stream.answering import answering, config_of, read_answering
from stream.config import AllocateConfig, AnswerConfig, Config, IncrementalConfig, WindowConfig
from stream.errors import RecordingError
from stream.identity import UNKNOWN, weights_of

CONFIG = Config(
    source="rtsp://user:secret@camera/stream",
    answer=AnswerConfig(
        query="Where?",
        encode="incremental",
        incremental=IncrementalConfig(share=0.3, every_frames=None),
        window=WindowConfig(frames=3, on_cut="keep"),
        temperature=0.5,
        max_tokens=9,
        server="tcp://10.0.0.2:5555",
    ),
    allocate=AllocateConfig(budget="adaptive"),
)


def test_what_was_told_answers_alike() -> None:
    told = read_answering(answering(CONFIG))
    assert (told.model, told.weights, told.threads) == (None, weights_of(None), torch.get_num_threads())
    config = config_of(told)
    assert config.allocate.budget == "adaptive"
    for key in ("encode", "incremental", "window", "temperature", "max_tokens", "top_p", "seed", "device", "dtype"):
        assert getattr(config.answer, key) == getattr(CONFIG.answer, key)


def test_nothing_is_told_that_is_nobodys_business() -> None:
    told = answering(CONFIG)
    assert not any(secret in told for secret in ("secret", "10.0.0.2", "Where?"))


def test_a_models_folder_is_told_so_that_it_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = read_answering(answering(Config(answer=AnswerConfig(model="model"))))
    assert told.model == str(tmp_path / "model")
    for name in ("owner/never-downloaded", "/no/such/folder"):
        told = read_answering(answering(Config(answer=AnswerConfig(model=name))))
        assert (told.model, told.weights) == (name, UNKNOWN)


def test_a_copy_has_the_same_weights_and_other_files_beside_them_do_not_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "arr_coc").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "README.md").write_text(name, encoding="utf-8")
        (tmp_path / name / "arr_coc" / "weights.safetensors").write_text(name, encoding="utf-8")
    assert weights_of(str(tmp_path / "one")) == weights_of(str(tmp_path / "two"))
    (tmp_path / "two" / "model.safetensors").write_bytes(b"weighty")
    assert weights_of(str(tmp_path / "one")) != weights_of(str(tmp_path / "two"))


def test_what_cannot_be_used_is_told_with_the_remedy() -> None:
    for nothing in ("", "{}", "[]"):
        with pytest.raises(RecordingError, match=r"does not tell what it was answered by .*; record it anew"):
            read_answering(nothing)
    changed = json.loads(answering(CONFIG))
    changed["program"] = "9.1"
    changed["settings"]["answer"]["encode"] = "telepathic"
    with pytest.raises(RecordingError, match=r"settings are not of this program .*; replay it with version 9\.1"):
        config_of(read_answering(json.dumps(changed)))
