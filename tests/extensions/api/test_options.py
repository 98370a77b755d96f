"""Options of runs whose answers come from a server with an API."""

from __future__ import annotations

import pytest

from stream.cli import main
from stream.commands.outcome import BAD_INPUT
from stream.config import Config
from stream.config_loading import ConfigLayer, build_config
from stream.errors import ConfigError

URL = "http://127.0.0.1:8000/v1"


def built(**values: object) -> Config:
    layers = [ConfigLayer("--api", {"api.url": URL})]
    keys = {key if key == "api.picture" else f"answer.{key}": value for key, value in values.items()}
    return build_config([*layers, ConfigLayer("--set", keys)])


def test_a_server_with_an_api_is_sent_pictures() -> None:
    assert built().answer.encode == "picture"
    assert built(encode="picture").answer.encode == "picture"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"server": "tcp://127.0.0.1:5555"}, "answers come from one server; leave out --api or --server"),
        ({"encode": "sparse"}, "takes pictures, not answer.encode = sparse; leave it out"),
        ({"device": "cpu"}, "answer.device = cpu has no effect with --api"),
        ({"dtype": "float32"}, "answer.dtype = float32 has no effect with --api"),
        ({"allocator": "folder"}, "answer.allocator = folder has no effect with --api"),
    ],
)
def test_options_without_meaning_for_a_server_are_refused(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        built(**values)


TOKENS = {"api.picture": "tokens"}


def test_a_server_that_takes_tokens_is_sent_chosen_ones_and_frames_if_there_are_to_be_several() -> None:
    assert built(**TOKENS).answer.encode == built(**TOKENS, encode="sparse").answer.encode == "sparse"
    assert not built(**TOKENS).keeps_groups
    assert built(**TOKENS, **{"memory.frames": 4}).keeps_groups
    assert not built(**{"memory.frames": 4}).keeps_groups
    assert built(**TOKENS, allocator="folder").answer.allocator == "folder"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"encode": "incremental"}, "takes tokens, not answer.encode = incremental; leave it out"),
        ({"memory.enabled": True}, "give --memory-frames N in place of --memory"),
    ],
)
def test_options_beyond_such_a_server_are_refused(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        built(**TOKENS, **values)


def test_tokens_are_for_a_server_only() -> None:
    with pytest.raises(ConfigError, match="is for a vLLM server; give its address with --api URL"):
        build_config([ConfigLayer("--picture", {"api.picture": "tokens"})])


def test_pictures_are_for_such_a_server_only() -> None:
    layer = ConfigLayer("--encode", {"answer.encode": "picture"})
    with pytest.raises(ConfigError, match="give --api URL, or --server ADDRESS"):
        build_config([layer])
    assert build_config([layer, ConfigLayer("--server", {"answer.server": "tcp://h:1"})]).answer.encode == "picture"


def test_an_answer_server_with_pictures_needs_a_server_that_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve-answers", "tcp://127.0.0.1:*", "--encode", "picture"]
    assert main(command) == main([*command, "-s", "answer.server=tcp://h:1"]) == BAD_INPUT
    first, second = capsys.readouterr().err.splitlines()
    assert "give --api URL" in first
    assert "needs a server with an API; give --api URL" in second
