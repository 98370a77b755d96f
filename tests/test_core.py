"""Three rules of imports: `arr_coc` never imports `stream`, the core no feature, a feature no other one."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.core import FEATURES, feature_of, lines_of_parts
from tests.test_imports import IMPORTS, within


def module_in(name: str) -> str | None:
    """Return the project's module that a dotted name is, or lies in; None for another project's."""
    parts = name.split(".")
    candidates = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in IMPORTS), None)


def breaches(imports: dict[str, set[str]]) -> Iterator[str]:
    """Yield `importer imports imported` for each import that breaks a rule."""
    for importer, names in imports.items():
        feature = feature_of(importer)
        for imported in {module for name in names if (module := module_in(name))} - {importer}:
            other = feature_of(imported)
            upward = within(importer, "arr_coc") and within(imported, "stream")
            # a feature may use what arr_coc has beside its core, such as the backends
            is_shared = feature is not None and within(imported, "arr_coc")
            if upward or (other not in (None, feature) and not is_shared):
                yield f"{importer} imports {imported}"


def test_no_import_breaks_a_rule() -> None:
    assert sorted(breaches(IMPORTS)) == []


def test_each_kind_of_breach_is_found() -> None:
    imports = {
        "arr_coc.types": {"stream.clock"},
        "stream.runtime.run": {"stream.extensions.mqtt.link.MqttLink"},
        "stream.extensions.mqtt.link": {
            "stream.extensions.web.viewer",
            "stream.extensions.mqtt.broker",
            "stream.clock",
            "paho.mqtt",
        },
    }
    assert sorted(breaches(imports)) == [
        "arr_coc.types imports stream.clock",
        "stream.extensions.mqtt.link imports stream.extensions.web.viewer",
        "stream.runtime.run imports stream.extensions.mqtt.link",
    ]


def test_every_module_of_a_feature_exists() -> None:
    assert [place for names in FEATURES.values() for place in names.split() if place not in IMPORTS] == []


def test_a_module_belongs_to_the_longest_name_that_fits() -> None:
    assert feature_of("stream.extensions.past.commands.recap") == feature_of("stream.extensions.past.store") == "past"
    assert feature_of("stream.extensions.web.viewer") == feature_of("stream.extensions.web") == "web"
    assert feature_of("stream.extension") is feature_of("stream.runtime.run") is None


def test_the_core_is_measured() -> None:
    lines = lines_of_parts()
    assert {"core", *FEATURES} < set(lines)
    assert min(lines.values()) > 0
