"""A model of a small world is asked about nothing else, unless it is forced to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream import cli
from stream.answer.model import check_watches, doubt_about
from stream.config import Config
from stream.errors import ConfigError
from stream.runtime.session import open_run
from tests.support.models import tiny_folder


def config(source: str, question: str | None, **answer: Any) -> Config:
    force = answer.pop("force", False)
    watches = [] if question is None else [{"question": question, "force": force}]
    return Config.model_validate({"source": source, "answer": answer, "watch": watches})


@pytest.mark.parametrize(
    ("world", "unknown_words", "knows_source", "refusal", "warning"),
    [
        (None, ("dog",), False, None, None),
        ("cats", (), True, None, None),
        ("cats", ("dog",), False, "m only knows cats, so its yes means nothing for this source", "only knows cats"),
        ("cats", ("dog",), True, "has never seen the word 'dog', so its yes", "never seen the word 'dog'"),
        ("cats", ("a", "b"), True, "has never seen the words 'a', 'b'", "never seen the words 'a', 'b'"),
    ],
)
def test_objections_to_a_model(
    world: str | None, unknown_words: tuple[str, ...], knows_source: bool, refusal: str | None, warning: str | None
) -> None:
    doubt = doubt_about("m", world, unknown_words, knows_source=knows_source)
    if doubt is None or refusal is None or warning is None:
        assert doubt is refusal is warning
        return
    assert refusal in doubt.refusal
    assert doubt.refusal.endswith("name a Qwen-VL model with -m, or give --force to run anyway")
    assert doubt.warning.startswith("means nothing: the model ")
    assert warning in doubt.warning


@pytest.mark.parametrize(
    ("source", "question", "refusal"),
    [
        ("clip.mp4", "is there a red circle?", "scenes-tiny only knows drawn scenes, so its yes means nothing"),
        ("0", "is there a red circle?", "scenes-tiny only knows drawn scenes, so its yes means nothing"),
        ("scene:demo", "is there a purple elephant?", "has never seen the word 'elephant', so its yes means nothing"),
    ],
)
def test_the_bundled_model_watches_drawn_scenes_for_what_it_knows(source: str, question: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        check_watches(config(source, question))
    check_watches(config(source, question, force=True))
    check_watches(config(source, None))
    check_watches(config(source, question, server="tcp://127.0.0.1:1"))
    check_watches(config("scene:demo", "is there a red circle?"))


def test_a_general_model_watches_for_anything(tmp_path: Path) -> None:
    check_watches(config("clip.mp4", "is there a purple elephant?", model=str(tiny_folder(tmp_path))))
    check_watches(config("clip.mp4", "is there a purple elephant?", model="Qwen/Qwen3-VL-2B-Instruct"))


def test_a_refused_run_opens_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "kept.jsonl"
    output.write_text("earlier\n")
    for command in ("caption", "watch"):
        status = cli.main([command, "scene:demo", "--until", "is there a dog?", "--realtime", "-o", str(output)])
        error = capsys.readouterr().err.splitlines()
        assert status == 2
        assert len(error) == 1
        assert error[0].startswith("error: scenes-tiny only knows drawn scenes and has never seen the word 'dog'")
    assert output.read_text() == "earlier\n"


def test_a_supervised_run_is_refused_too(tmp_path: Path) -> None:
    restarted = Config.model_validate(
        {
            "source": "scene:demo",
            "watch": [{"question": "is there a dog?"}],
            "pipeline": {"restart": True},
            "capture": {"realtime": True},
        }
    )
    with pytest.raises(ConfigError, match="never seen the word 'dog'"):
        open_run(restarted)


def test_force_goes_with_until(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["caption", "scene:demo", "--force"]) == 2
    assert "--force needs --watch or --until" in capsys.readouterr().err


@pytest.mark.slow
def test_a_forced_yes_carries_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    options = ["--force", "--single-process", "--max-frames", "30", "--go-on", "-o", str(path)]
    cli.main(["caption", "scene:demo", "--until", "is there a red dog?", *options])
    looks = [line for line in path.read_text("utf-8").splitlines() if '"type":"look"' in line]
    assert looks
    assert all("means nothing: the model has never seen the word 'dog'" in line for line in looks)
