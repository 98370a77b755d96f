"""Types of sinks: what an output needs, takes, and is checked for."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest

from stream.commands.run import check_run
from stream.config import Config
from stream.config_loading import known_keys
from stream.errors import ConfigError
from stream.options import extra
from stream.options.table import OPTIONS
from stream.sinks.types import caption_suffixes, caption_types, sink_types, takes_pictures
from tests.support.sections import opened_sinks, sections

VALUES = {
    "web.address": "8090",
    "robotics.foxglove": "8765",
    "otlp.url": "http://localhost:4318",
    "mqtt.url": "mqtt://home",
    "rerun.address": "spawn",
}
"""A valid value of each key whose sink needs a library."""

NEEDING = [(sink, suffix) for sink in sink_types() if sink.extra is not None for suffix in sink.suffixes or ("",)]


@pytest.mark.parametrize(
    ("sink", "suffix"), NEEDING, ids=lambda value: value if isinstance(value, str) else value.key or "-o"
)
def test_an_output_without_its_library_is_refused(sink: Any, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    key, value = (sink.key, VALUES[sink.key]) if sink.key else ("output.paths", ("c.vtt", f"run{suffix.upper()}"))
    config = Config(source="scene:demo").with_values({key: value})
    with pytest.raises(ConfigError) as caught:
        check_run(config)
    assert f"needs {', '.join(sink.extra.libraries)}" in str(caught.value)
    assert str(caught.value).endswith(sink.extra.install)
    with pytest.raises(ConfigError, match="needs"):
        opened_sinks(config)


def test_only_what_shows_pictures_has_them_sent() -> None:
    silent = Config(**sections(mqtt__url="mqtt://x", mqtt__picture=False))
    assert not takes_pictures(Config())
    assert takes_pictures(Config(**sections(rerun__address="spawn")), all_frames=True)
    assert takes_pictures(Config().with_values({"output.paths": ("a.vtt", "a.rrd")}))
    assert not takes_pictures(silent.with_values({"output.paths": ("a.vtt",)}))
    assert not takes_pictures(Config(**sections(mqtt__url="mqtt://x")), all_frames=True)


def test_every_type_is_whole() -> None:
    suffixes = caption_suffixes()
    assert len(set(suffixes)) == len(suffixes)
    assert all(sink.help for sink in caption_types())
    options = {option.key: option.names[0] for option in OPTIONS}
    for sink in sink_types():
        if sink.extra is not None and sink.extra.missing():
            continue
        assert callable(resolve_name(sink.open))
        assert not sink.check or callable(resolve_name(sink.check))
        if sink.key:
            assert sink.key in known_keys()
            assert sink.option == options[sink.key]
