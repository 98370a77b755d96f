"""Provenance of recorded answers, encoded and decoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stream.config import AnswerConfig, Config
from stream.errors import RecordingError
from stream.extensions.record.provenance import config_of, parse_provenance
from stream.recording.identity import ANSWER_KEYS, UNKNOWN, answer_provenance, model_fingerprint
from tests.stream.recording.test_identity import CONFIG


def test_reported_options_give_the_same_answers() -> None:
    provenance = parse_provenance(answer_provenance(CONFIG))
    assert (provenance.model, provenance.weights, provenance.threads) == (
        None,
        model_fingerprint(None),
        torch.get_num_threads(),
    )
    config = config_of(provenance)
    for key in ANSWER_KEYS - {"system"}:
        assert getattr(config.answer, key) == getattr(CONFIG.answer, key)


def test_a_models_folder_is_reported_so_that_it_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    provenance = parse_provenance(answer_provenance(Config(answer=AnswerConfig(model="model"))))
    assert provenance.model == str(tmp_path / "model")
    for name in ("owner/never-downloaded", "/no/such/folder"):
        provenance = parse_provenance(answer_provenance(Config(answer=AnswerConfig(model=name))))
        assert (provenance.model, provenance.weights) == (name, UNKNOWN)


def test_unusable_recordings_are_reported_with_the_remedy() -> None:
    for text in ("", "{}", "[]"):
        with pytest.raises(RecordingError, match=r"has no valid provenance .*; record it again"):
            parse_provenance(text)
    changed = json.loads(answer_provenance(CONFIG))
    changed["program"] = "9.1"
    changed["settings"]["answer"]["encode"] = "telepathic"
    with pytest.raises(
        RecordingError, match=r"has settings that this program does not know .*; replay it with version 9\.1"
    ):
        config_of(parse_provenance(json.dumps(changed)))
