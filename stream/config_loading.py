"""Loading of the configuration from layers: preset or TOML file, `--set`, options.

Every mistake becomes a ConfigError that names its file or option, the key, and the accepted values or the nearest key.
"""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from arr_coc.budget import ADAPTIVE
from arr_coc.errors import OptionError, counted
from arr_coc.qwen.quantisation import SMALL_DTYPES
from arr_coc.resources import preset_folder, presets
from arr_coc.schema_reader import SCHEMA_BYTES_MAX
from arr_coc.types import NEEDS_TOKENS_ONLY, SHOWS_ALL_TILES
from stream.config import Config, WatchConfig
from stream.errors import ConfigError
from stream.extension.registry import model_type_of, model_types, section_models
from stream.options.durations import parse_duration
from stream.untrusted import CONFIG_BYTES_MAX, WATCHES_MAX

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


log = logging.getLogger(__name__)

ZONES = "zones"
NAME = "NAME"
"""Section whose tables have names of their own, and what stands for a name in the list of keys."""

ZONE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

PICTURE = "picture"
"""Value of `answer.encode` for a server that takes pictures."""


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """Values of some dotted keys; `origin` names their file or option in messages. `file`: the user's file that they
    were read from."""

    origin: str
    values: Mapping[str, object]
    file: Path | None = None


def build_config(layers: Sequence[ConfigLayer]) -> Config:
    """Build the configuration from layers, of which the last one wins. Raises ConfigError."""
    fields = known_keys()
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if known_as(key) not in fields:
                raise ConfigError(f"{layer.origin}: {_unknown(key, fields)}")
            if key in origins:
                log.info("%s of %s takes the place of that of %s", key, layer.origin, origins[key])
            origins[key] = layer.origin
            _put(tree, key, None if value == "none" and _may_be_none(fields[known_as(key)]) else value)
    try:
        config = Config.of_tables(tree)
    except ValidationError as error:
        raise ConfigError(_invalid(error, fields, origins)) from error
    model_type = model_type_of(config)
    if model_type is not None and "answer.encode" not in origins:
        origins["answer.encode"] = origins[model_type.key]
        config = config.with_values({"answer.encode": model_type.encoding_of(config)})
    for key, problem in _contradictions(config, origins):
        raise ConfigError(f"{origins[key]}: {problem}")
    config = _with_schema(config, origins)
    vars(config)["file"] = next((layer.file for layer in reversed(layers) if layer.file is not None), None)
    return config


def _with_schema(config: Config, origins: Mapping[str, str]) -> Config:
    """Return the configuration with the schema of answers in place of its file or its short form."""
    answer = config.answer
    if answer.json_schema is None and answer.choices is None:
        return config
    if answer.json_schema is None:
        key = "answer.choices"
    else:
        key = "answer.json_schema"
    try:
        if answer.json_schema is not None and not answer.json_schema.lstrip().startswith(("{", "[", '"')):
            answer = answer.model_copy(update={"json_schema": _schema_file(answer.json_schema)})
        schema = answer.schema_of_answers
    except OptionError as error:
        raise ConfigError(f"{origins[key]}: {error}") from error
    if answer.json_schema is None or schema is None:
        return config
    return config.model_copy(update={"answer": answer.model_copy(update={"json_schema": schema.text})})


def _schema_file(name: str) -> str:
    """Return the text of a file with a schema. Raises OptionError."""
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8 text"
        raise OptionError(
            f"cannot read the schema {name!r}: {reason}", "name a file, or give JSON, which begins with {"
        ) from None


def _contradictions(config: Config, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield keys whose values are right alone and not together, and the remedy."""
    answer = config.answer
    allocate = config.allocate
    if allocate.min_tokens > allocate.max_tokens:
        yield (
            "allocate.min_tokens" if "allocate.min_tokens" in origins else "allocate.max_tokens",
            f"allocate.min_tokens = {allocate.min_tokens} is more than allocate.max_tokens = {allocate.max_tokens}; "
            "lower the one or raise the other",
        )
    if answer.thinking != "off" and answer.when == "news":
        yield (
            "answer.thinking",
            f"answer.when = news compares answers without thoughts; leave answer.thinking = {answer.thinking} out",
        )
    yield from _watch_contradictions(config)
    yield from _zone_contradictions(config, origins)
    if answer.json_schema is not None and answer.choices is not None:
        yield "answer.choices", "answers have a schema or are one of several choices; leave --choices or --schema out"
    if answer.thinking == "show" and (answer.json_schema or answer.choices) is not None:
        yield (
            "answer.thinking",
            "answer.thinking = show makes thoughts part of the answer, which then has no schema; set it to hide or off",
        )
    if answer.cache_weights and answer.dtype not in SMALL_DTYPES:
        yield (
            "answer.cache_weights",
            f"answer.cache_weights keeps weights in int8 or int4, and answer.dtype = {answer.dtype}; give --dtype int8 "
            "or int4, or leave it out",
        )
    if answer.server is not None and answer.thinking != "off":
        yield (
            "answer.thinking",
            f"answer.thinking = {answer.thinking} has no effect with --server: its server decides that; leave it out, "
            f"or start `serve-answers` there with --thinking {answer.thinking}",
        )
    yield from _server_contradictions(config)
    for model in section_models().values():
        yield from model.of(config).problems(config)
    yield from _memory_contradictions(config, origins)
    yield from _glance_contradictions(config)


def _zone_contradictions(config: Config, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, zone in config.zones.items():
        key = next(key for key in origins if key.startswith(f"{ZONES}.{name}."))
        if not ZONE_NAME.fullmatch(name):
            yield key, f"the zone {name!r} needs another name: 1 to 64 letters, digits, _ or -"
        if (problem := zone.problem) is not None:
            yield key, f"{ZONES}.{name} {problem}"
    encode = config.answer.encode
    zone_references = [("answer.zone", "answer.zone", config.answer.zone)]
    zone_references += [("watch", f"watch {watch.name!r}: zone", watch.zone) for watch in config.watch]
    for key, setting, zone_name in zone_references:
        if zone_name is None:
            continue
        if zone_name not in config.zones:
            if config.zones:
                hint = f"zones has {', '.join(config.zones)}"
            else:
                hint = "the configuration has no zones"
            yield key, f"{setting} = {zone_name} is no zone; {hint}"
        elif config.zones[zone_name].mask:
            yield key, f"{setting} = {zone_name} is masked, so there is nothing to see; name another zone"
        if encode in SHOWS_ALL_TILES:
            yield (
                key,
                f"{setting} limits the tokens, and answer.encode = {encode} shows all tiles; give --encode sparse, "
                "incremental or prune",
            )


def _watch_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    if len(config.watch) > WATCHES_MAX:
        yield (
            "watch",
            f"{len(config.watch)} watches are more than {WATCHES_MAX}, the most of a camera; leave some out",
        )
    watches_by_name: dict[str, WatchConfig] = {}
    for watch in config.watch:
        if watch.name in watches_by_name:
            is_repeated = watches_by_name[watch.name].question == watch.question
            if is_repeated:
                remedy = "leave one of them out, or give them different names"
            else:
                remedy = "give them different names"
            yield "watch", f"two watches are named {watch.name!r}; {remedy}"
        if watch.most_of_no > watch.threshold:
            yield (
                "watch",
                f"watch {watch.name!r}: no_below = {watch.no_below:g} is more than threshold = {watch.threshold:g}; "
                "lower the one or raise the other",
            )
        watches_by_name[watch.name] = watch


def _memory_contradictions(config: Config, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    answer = config.answer
    budget = config.allocate.budget
    frames = answer.memory.frames
    if frames > 1 and answer.memory.enabled is False and config.model_key is None:
        yield (
            "answer.memory.frames",
            f"answer.memory.frames = {frames}: the visual memory keeps them, and --no-memory switches it off; leave "
            "one of them out",
        )
    if not config.keeps_groups:
        return
    if answer.encode not in NEEDS_TOKENS_ONLY:
        yield (
            "answer.memory.frames" if frames > 1 else "answer.memory.enabled",
            f"a visual memory is shown what is new, and answer.encode = {answer.encode} encodes whole frames; give "
            f"--encode sparse or incremental, or leave --memory{'-frames' if frames > 1 else ''} out",
        )
    if config.requires_groups and isinstance(budget, int) and frames * budget > answer.memory.tokens:
        yield (
            next(filter(origins.__contains__, ("answer.memory.tokens", "answer.memory.frames")), "allocate.budget"),
            f"answer.memory.tokens = {answer.memory.tokens} is too small for {counted(frames, 'frame')} of "
            f"{counted(budget, 'token')}; raise it, or lower allocate.budget",
        )


def _server_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    answer = config.answer
    options = {key: kind.option for key, kind in model_types().items() if config.value(key) is not None}
    if answer.server is not None:
        options["answer.server"] = "--server"
    if len(options) > 1:
        yield list(options)[-1], f"answers come from one server; leave out {' or '.join(options.values())}"
    if answer.encode == PICTURE and not options:
        yield (
            "answer.encode",
            "answer.encode = picture is for a server with an API; give --api URL, or --server ADDRESS",
        )


def _glance_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    answer = config.answer
    glance = config.answer.glance
    if glance.enabled is True and answer.encode not in NEEDS_TOKENS_ONLY:
        yield (
            "answer.glance.enabled",
            f"a glance chooses what is encoded, and answer.encode = {answer.encode} encodes whole frames; give "
            "--encode sparse or incremental, or leave --glance out",
        )
    if glance.enabled is False and answer.overview == "keep":
        yield (
            "answer.overview",
            "answer.overview = keep needs glances, and answer.glance.enabled = false; leave one of them out",
        )
    if glance.enabled is False or glance.tokens == "auto":
        return
    least = _least_budget(config)
    if least is not None and glance.tokens >= least:
        if config.value("latency.target_ms") is not None:
            budget_name = "the target's least budget"
        else:
            budget_name = "allocate.budget"
        yield (
            "answer.glance.tokens",
            f"an overview of {counted(glance.tokens, 'token')} leaves nothing of {budget_name}, "
            f"{counted(least, 'token')}; give fewer, or auto",
        )


def _least_budget(config: Config) -> int | None:
    """Return the least tokens that a frame of any size gets, if it has as many tiles; None for a share of its tiles."""
    budget = config.allocate.budget
    if config.value("latency.target_ms") is not None or budget == ADAPTIVE:
        return config.allocate.min_tokens
    return None if isinstance(budget, str) else budget


def layer_from_file(name: str) -> ConfigLayer:
    """Return the layer of a TOML file, or a preset if `name` is a bare word such as `webcam`. Raises ConfigError."""
    path = Path(name)
    file: Path | None = path
    if (path.is_dir() or not path.exists()) and path.name == name and not path.suffix:
        path = preset_folder() / f"{name}.toml"
        file = None
        if not path.exists():
            if "," in name:
                several = "; give --config once for each"
            else:
                several = ""
            raise ConfigError(f"no preset {name!r}; there are {', '.join(presets())}, or give a TOML file{several}")
    return ConfigLayer(name, dict(leaves(read_toml(path, name))), file)


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """Return the tables of a TOML file, which messages call `name`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise OSError(0, f"it has more than {CONFIG_BYTES_MAX} bytes")
        values = tomllib.loads(data.decode("utf-8"))
        list(leaves(values))  # so that values nested too deeply are refused here
    except FileNotFoundError as error:
        raise ConfigError(f"no configuration file {name!r}; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8 text"
        raise ConfigError(f"cannot read configuration {name!r}: {reason}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: not a configuration: it is nested too deeply") from error
    except ValueError as error:  # of TOML, or a number with thousands of digits
        raise ConfigError(f"{name}: not valid TOML: {error}") from error
    return values


_POINT = re.compile(r"^([+-]?)(?=\.\d)")

SWITCHES = {"on": True, "off": False, "yes": True, "no": False}
"""Words for true and false, for keys that are true or false."""


def layer_from_assignment(assignment: str, option: str = "--set") -> ConfigLayer:
    """Return the layer of one `--set section.key=value`, or of another such option.

    Raises ConfigError if `=` or the key is missing.
    """
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{option} needs KEY=VALUE, such as allocate.budget=128; got {assignment!r}")
    return layer_from_option(option, key, text.strip())


def layer_from_option(option: str, key: str, text: str) -> ConfigLayer:
    """Return the layer of one option's text: a TOML value if it is one, the bare text otherwise. Seconds may be `500ms`
    or `2m` as well, and a number may begin with its point."""
    field = known_keys().get(known_as(key))
    value: object = text
    number = _POINT.sub(r"\g<1>0", text)
    try:
        table = tomllib.loads(f"value = {number}")
    except (ValueError, RecursionError):
        table = {}
    if set(table) == {"value"} and (isinstance(table["value"], str) or not _is_text(field)):
        value = table["value"]
    elif field is not None and text in SWITCHES and bool in (field.annotation, *get_args(field.annotation)):
        value = SWITCHES[text]
    elif key.endswith("_s"):
        with suppress(ConfigError):
            value = parse_duration(option, text)
    return ConfigLayer(option, dict(leaves({key: value})) if known_as(key) in _free_tables() else {key: value})


def known_keys() -> dict[str, FieldInfo]:
    """Return every dotted key of the configuration and its field, those of extensions last."""
    keys = keys_of(Config)
    for name, model in section_models().items():
        keys |= keys_of(model, f"{name}.")
    return keys


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return the dotted keys of a model and their fields."""
    keys: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if inner is None:
            keys[prefix + name] = field
        else:
            keys |= keys_of(inner[1], f"{prefix}{name}.{inner[0]}")
    return keys


def section_of(annotation: Any) -> tuple[str, type[BaseModel]] | None:
    """Return the model of a section or of named tables, and what stands before its keys; None for a value."""
    if get_origin(annotation) is dict:
        value = get_args(annotation)[1]
    else:
        value = None
    if isinstance(value, type) and issubclass(value, BaseModel):
        return f"{NAME}.", value
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ("", annotation)
    return None


def known_as(key: str) -> str:
    """Return a key as `known_keys` has it: `zones.NAME.box` for `zones.porch.box`, a free table for a key in it."""
    for table in _free_tables():
        if key.startswith(f"{table}."):
            return table
    section, _, rest = key.partition(".")
    if section == ZONES and rest:
        return f"{ZONES}.{NAME}.{rest.partition('.')[2]}"
    return key


@cache
def _free_tables() -> tuple[str, ...]:
    """Return the keys of tables whose keys are any, such as `capture.headers`."""
    return tuple(key for key, field in known_keys().items() if get_origin(field.annotation) is dict)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys of nested tables, and their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    *sections, name = key.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            inner = tree[section] = {}
        tree = inner
    tree[name] = value


def _may_be_none(field: FieldInfo) -> bool:
    return type(None) in getattr(field.annotation, "__args__", ())


def _is_text(field: FieldInfo | None) -> bool:
    return field is not None and field.annotation in (str, str | None)


def _unknown(key: str, fields: Mapping[str, FieldInfo]) -> str:
    subkeys = [field_key.removeprefix(f"{key}.") for field_key in fields if field_key.startswith(f"{key}.")]
    if subkeys:
        return f"{key} is a section, not a value; its keys are {', '.join(subkeys)}"
    nearest = _as_in_a_section(key, fields) or difflib.get_close_matches(known_as(key), fields, n=1, cutoff=0.75)
    if nearest and key.startswith(f"{ZONES}."):
        nearest = [nearest[0].replace(NAME, key.split(".")[1])]
    if not nearest:
        names = {**{field_key.rpartition(".")[2]: field_key for field_key in fields}, "question": "answer.query"}
        match = difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.7)
        nearest = [names[match[0]]] if match else []
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    else:
        hint = f"its sections are {', '.join(_sections(fields))}; those of extensions: docs/configuration.md"
    return f"unknown key {key}; {hint}"


MOVED = {
    "output.control": "zeromq.control",
    "output.publish": "zeromq.publish",
    "output.on_match": "on_match.command",
    "output.on_match_limit_s": "on_match.limit_s",
    "output.foxglove": "robotics.foxglove",
    "output.log_time": "robotics.log_time",
    "output.frame_id": "robotics.frame_id",
    "output.remember": "past.file",
    "output.remember_camera": "past.camera",
    "output.remember_max_days": "past.max_days",
    "output.remember_max_mib": "past.max_mib",
    "allocate.detections": "detections.address",
}
"""Keys that have another name in the section of their feature."""


def _as_in_a_section(key: str, fields: Mapping[str, FieldInfo]) -> list[str]:
    """Return the key of an extension that a name means: `mqtt.name` for `output.mqtt_name`, `mqtt.url` for `mqtt`,
    `api.url` for `answer.api.url`."""
    if key in MOVED:
        return [MOVED[key]]
    inner = key.partition(".")[2]
    if "." in inner and inner.partition(".")[0] in section_models():
        return difflib.get_close_matches(known_as(inner), fields, n=1, cutoff=0.75)
    name, _, rest = key.rpartition(".")[2].partition("_")
    model = section_models().get(name)
    if model is None:
        return []
    meant = f"{name}.{rest or model.switch}"
    return [meant] if meant in fields and meant != key else []


def _sections(fields: Mapping[str, FieldInfo]) -> list[str]:
    names = dict.fromkeys(key.partition(".")[0] for key in fields if "." in key)
    return [name for name in names if name not in section_models()]


def _invalid(error: ValidationError, fields: Mapping[str, FieldInfo], origins: Mapping[str, str]) -> str:
    """Return one line about the first wrong value, and the number of others."""
    wrong: dict[str, list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"]]
        key = next(k for n in range(len(parts), 0, -1) if known_as(k := ".".join(parts[:n])) in fields)
        wrong.setdefault(_place_in(key, item), []).append(item)
    place, items = next(iter(wrong.items()))
    key, _, rest = place.partition(" ")
    origin = origins.get(key) or next(origins[other] for other in origins if other.startswith(f"{key}."))
    if len(wrong) > 1:
        suffix = f" (and {len(wrong) - 1} more)"
    else:
        suffix = ""
    if key == "watch" and rest:
        return f"{origin}: {_invalid_watch(place, items)}{suffix}"
    if key == "watch":
        return f"{origin}: watch should be a list of questions or tables, got {_shown(items[0]['input'])}"
    field = fields[known_as(key)]
    accepted = [_accepted(item, field) for item in items] + (["be none"] if _may_be_none(field) else [])
    is_option = origin.startswith("--") and origin != "--set"  # it names the key already
    subject = origin if is_option else f"{origin}: {key}"
    return f"{subject} should {', or '.join(accepted)}, got {_shown(items[0]['input'])}{suffix}"


def _place_in(key: str, item: ErrorDetails) -> str:
    """Return the key of an error; for a watch with its number, from 1, and the watch's key: `watch 2 hold_s`."""
    loc = item["loc"]
    if key != "watch" or len(loc) < 2 or not isinstance(loc[1], int):
        return key
    return " ".join([key, str(loc[1] + 1), *(str(part) for part in loc[2:3])])


def _invalid_watch(place: str, items: Sequence[ErrorDetails]) -> str:
    """Return the line about a wrong watch."""
    item = items[0]
    keys = WatchConfig.model_fields
    if len(item["loc"]) > 2:
        name = str(item["loc"][2])
    else:
        name = ""
    location = place.removesuffix(f" {name}")
    if item["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
        if nearest:
            hint = f"did you mean {nearest[0]}?"
        else:
            hint = f"its keys are {', '.join(keys)}"
        return f"{location}: unknown key {name}; {hint}"
    if item["type"] == "missing":
        return f"{location}: it has no {name}; give {name} = 'is there a red car?'"
    if name not in keys:
        return f"{location} should be a question or a table of keys, got {_shown(item['input'])}"
    if item["type"] == "value_error":
        return f"{location}: {name} {item['ctx']['error']}"
    accepted = list(dict.fromkeys(_accepted(detail, keys[name]) for detail in items))
    accepted += ["be none"] if _may_be_none(keys[name]) else []
    return f"{location}: {name} should {', or '.join(accepted)}, got {_shown(item['input'])}"


def _shown(value: object) -> str:
    if isinstance(value, str) and len(value) > 60:
        return f"{len(value)} characters"
    return repr(value)


def _accepted(item: ErrorDetails, field: FieldInfo) -> str:
    """Return what a value should be: plain words for pydantic's most usual ones, an example in place of a pattern."""
    if item["type"] in ("string_pattern_mismatch", "string_type") and field.examples:
        share = field.examples[0].endswith("%")
        return f"be {'a share up to 100%,' if share else 'text'} such as {field.examples[0]}"
    if item["type"] in PLAIN:
        return PLAIN[item["type"]].format(**item.get("ctx", {}))
    return item["msg"].partition(" should ")[2]


PLAIN = {
    "int_parsing": "be a whole number",
    "int_type": "be a whole number",
    "int_from_float": "be a whole number",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "finite_number": "be a number",
    "bool_parsing": "be on or off",
    "bool_type": "be on or off",
    "greater_than": "be more than {gt:g}",
    "greater_than_equal": "be {ge:g} or more",
    "less_than": "be less than {lt:g}",
    "less_than_equal": "be at most {le:.12g}",
}
"""Types of pydantic's errors → what the value should be."""
