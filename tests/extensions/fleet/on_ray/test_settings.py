"""Table `[ray]` of a fleet file, and outputs that cannot be had from another machine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stream.config import Config, OutputConfig
from stream.errors import ConfigError
from stream.extensions.fleet.on_ray.settings import check_far, read_settings
from stream.extensions.why.section import WhySection
from stream.extensions.zeromq.section import ZeromqSection

CAMERAS = {"door": {}, "yard": {}}


def test_settings_of_a_table() -> None:
    table = {
        "camera": {"camera_host": 1},
        "cameras": {"yard": {"yard_node": 0.5}},
        "answers": {"GPU": 1},
        "servers": 2,
        "servers_max": 4,
    }
    settings = read_settings(table, "[ray]", CAMERAS)
    assert settings.of_camera("door") == {"camera_host": 1.0}
    assert settings.of_camera("yard") == {"yard_node": 0.5}
    assert (settings.answers, settings.servers, settings.most_servers) == ({"GPU": 1.0}, 2, 4)
    assert read_settings({"servers": 3}, "[ray]", CAMERAS).most_servers == 3


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"answer": {"GPU": 1}}, "a.toml: [ray]: unknown key answer; did you mean answers?"),
        ({"zzz": 1}, "a.toml: [ray]: unknown key zzz; there are camera, cameras, answers"),
        ({"cameras": {"dor": {"x": 1}}}, "a.toml: [ray]: cameras: unknown camera dor; did you mean door?"),
        ({"servers": 0}, "a.toml: [ray]: servers should be greater than or equal to 1, got 0"),
        ({"camera": {"host": 0}}, "a.toml: [ray]: camera.host should be greater than 0, got 0"),
        ({"camera": {"host": "1"}}, "a.toml: [ray]: camera.host should be a valid number, got '1'"),
        ({"servers": 3, "servers_max": 2}, "servers_max = 2 is less than servers = 3; raise it, or leave it out"),
        (3, "a.toml: [ray] should be a table, such as [ray] with servers = 1, got 3"),
    ],
)
def test_mistakes_are_reported_in_one_line(table: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        read_settings(table, "a.toml: [ray]", CAMERAS)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["web.address", "heatmap.file", "record.folder"])
def test_outputs_that_need_the_frames_are_refused(key: str) -> None:
    check_far(
        Config(
            output=OutputConfig(paths=("a.jsonl",)),
            why=WhySection(file="why.jsonl"),
            zeromq=ZeromqSection(publish="tcp://127.0.0.1:5556"),
        )
    )
    with pytest.raises(ConfigError, match=f"{key} needs the frames themselves.*leave it out, or --ray"):
        check_far(Config().with_values({key: "8080"}))
