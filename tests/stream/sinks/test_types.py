"""Types of sinks: what an output needs, takes, and is checked for."""

from __future__ import annotations

from typing import Any

import pytest

from stream.commands.run import check_run
from stream.config import Config, OutputConfig
from stream.errors import ConfigError
from stream.options import extra
from stream.sinks.factory import open_sinks
from stream.sinks.types import CAPTION_SINKS, CAPTION_SUFFIXES, SINKS, takes_pictures

VALUES = {"web": "8090", "foxglove": "8765", "otlp": "http://localhost:4318", "mqtt": "mqtt://home", "rerun": "spawn"}
"""A valid value of each key whose sink needs a library."""

NEEDING = [(sink, suffix) for sink in SINKS if sink.extra is not None for suffix in sink.suffixes or ("",)]


@pytest.mark.parametrize(
    ("sink", "suffix"), NEEDING, ids=lambda value: value if isinstance(value, str) else value.key or "-o"
)
def test_an_output_without_its_library_is_refused(sink: Any, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    values: dict[str, Any] = {sink.key: VALUES[sink.key]} if sink.key else {"paths": ("c.vtt", f"run{suffix.upper()}")}
    output = OutputConfig(**values)
    with pytest.raises(ConfigError) as caught:
        check_run(Config(source="scene:demo", output=output))
    assert f"needs {', '.join(sink.extra.libraries)}" in str(caught.value)
    assert str(caught.value).endswith(sink.extra.install)
    if suffix:
        with pytest.raises(ConfigError, match="needs"):
            open_sinks(output, "scene:demo", lambda: None)  # type: ignore[arg-type, return-value]


def test_only_what_shows_pictures_has_them_sent() -> None:
    assert not takes_pictures(OutputConfig())
    assert takes_pictures(OutputConfig(rerun="spawn"), all_frames=True)
    assert takes_pictures(OutputConfig(paths=("a.vtt", "a.rrd")))
    assert not takes_pictures(OutputConfig(paths=("a.vtt",), mqtt="mqtt://x", mqtt_picture=False))
    assert not takes_pictures(OutputConfig(mqtt="mqtt://x"), all_frames=True)


def test_every_type_is_whole() -> None:
    assert len(set(CAPTION_SUFFIXES)) == len(CAPTION_SUFFIXES)
    assert all(sink.help for sink in CAPTION_SINKS)
    assert {sink.key for sink in SINKS} - {""} <= set(OutputConfig.model_fields)
