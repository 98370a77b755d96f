"""Zones and watches of the page, saved to the configuration file of the run."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream.clock import RateLimit
from stream.config import WatchConfig, ZoneConfig, name_watches
from stream.config_loading import ZONE_NAME, read_toml
from stream.errors import ConfigError
from stream.events import StandingQuestion
from stream.extensions.web.access import WebAccess
from stream.extensions.web.chat.completions import body_of
from stream.extensions.web.chat.questions import QuestionRefused, chosen_camera, named_cameras
from stream.extensions.web.hub import Hub
from stream.extensions.web.toml_tables import append_table, put_table, remove_tables
from stream.sinks.output_file import replace_file
from stream.untrusted import cut_to

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SAVE_BYTES_MAX = 32 * 1024

SAVES_A_SECOND = 2.0
SAVES_AT_ONCE = 8.0

TRIES = 5
"""Times that a file is read anew because another program has written it meanwhile."""

VIEW_ONLY = "this page only shows; nothing is saved from it. Give --web-control"

SEVERAL = "a page of several cameras saves nothing; download the text, and put it into the file of the cameras"

NO_FILE = "this run has no configuration file; download the text, and start the run with -c FILE"

NO_ZONE = "not a zone: one table [zones.NAME] with points, and weight or mask"

Tables = dict[str, Any]

_lock = threading.Lock()
"""Held while a file is read, changed and written: viewers of one program save one after another."""


class SaveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to save a `zone`, as the TOML of its table, or the `watches` that were added and removed.

    `replace`: a zone of the same name in the file may be replaced.
    """

    camera: str = ""
    zone: str | None = None
    watches: bool = False
    replace: bool = False


_requests = msgspec.json.Decoder(SaveRequest)


@dataclass(frozen=True, slots=True)
class ChangedWatches:
    """Watches that were added to the run since it began, and the names of those that were removed."""

    added: tuple[StandingQuestion, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, hub: Hub) -> ChangedWatches:
        """Return the changes of a run's watches."""
        before = {watch.name: watch for watch in hub.options.begun_with}
        now = {watch.name: watch for watch in hub.watches}
        added = tuple(watch for name, watch in now.items() if before.get(name) != watch)
        return cls(added, tuple(name for name in before if name not in now))

    @property
    def toml(self) -> str:
        """The added watches as tables."""
        return "\n".join(map(watch_table, self.added))


def watch_table(watch: StandingQuestion) -> str:
    """Return a watch as a table `[[watch]]`, without values that are the defaults."""
    lines = ["[[watch]]", f"name = {_quoted(watch.name)}", f"question = {_quoted(watch.question)}"]
    for key in ("threshold", "hold_s", "cooldown_s"):
        value = getattr(watch, key)
        if value != WatchConfig.model_fields[key].default:
            lines.append(f"{key} = {float(value)!r}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # a JSON string is one of TOML, but for DEL
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_zone(text: str) -> tuple[str, Tables]:
    """Return the name and the values of the zone in a TOML text. Raises QuestionRefused."""
    try:
        tables = tomllib.loads(text)
        ((name, values),) = tables.pop("zones").items()
        problem = ZoneConfig.model_validate(values).problem
    except (tomllib.TOMLDecodeError, KeyError, ValueError, AttributeError, ValidationError, RecursionError) as error:
        raise QuestionRefused(NO_ZONE, 400) from error
    if tables or not ZONE_NAME.fullmatch(name):
        raise QuestionRefused(NO_ZONE, 400)
    if problem is not None:
        raise QuestionRefused(f"zone {name} {problem}", 400)
    return name, values


class SettingsFile:
    """Configuration file of a run, to which zones and watches are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name

    @property
    def problem(self) -> str | None:
        """Reason for which nothing can be saved to it."""
        try:
            mode = self._path.stat().st_mode
        except OSError as error:
            return f"cannot save to {self.name}: {error.strerror}; download the text instead"
        # root may write any file, so the bits are looked at too
        if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(self._path, os.W_OK):
            return f"{self.name} is read-only; download the text, or make the file writable"
        return None

    def zones(self) -> list[str]:
        """Return the names of its zones; none if it cannot be read."""
        try:
            return list(read_toml(self._path, self.name).get("zones", {}))
        except ConfigError:
            return []

    def save_zone(self, text: str, *, replace: bool) -> str:
        """Write a zone; return what was saved, in words. Raises QuestionRefused."""
        name, values = read_zone(text)

        def change(old: str, tables: Tables) -> str:
            zones = tables.setdefault("zones", {})
            if name in zones and zones[name] != values and not replace:
                raise QuestionRefused(f"{self.name} has a zone {name} by now; save again to replace it", 409)
            if zones.get(name) == values:
                return old
            zones[name] = values
            return put_table(old, ("zones", name), text)

        self._change(change)
        return f"zone {name}"

    def save_watches(self, changes: ChangedWatches) -> str:
        """Write the changes of the watches; return what was saved, in words. Raises QuestionRefused."""

        def change(old: str, tables: Tables) -> str:
            items = list(tables.get("watch", []))
            names = [watch.name for watch in name_watches(tuple(map(WatchConfig.model_validate, items)))]
            removed = {number for number, name in enumerate(names) if name in changes.removed}
            text = remove_tables(old, ("watch",), removed)
            items = [item for number, item in enumerate(items) if number not in removed]
            for watch in changes.added:
                if watch.name not in names:
                    table = watch_table(watch)
                    text = append_table(text, table)
                    items += tomllib.loads(table)["watch"]
            tables.pop("watch", None)
            if items:
                tables["watch"] = items
            return text

        self._change(change)
        return "the watches"

    def _change(self, change: Callable[[str, Tables], str]) -> None:
        """Write what `change` makes of the text; it changes the tables too, and both must agree."""
        with _lock:
            for _ in range(TRIES):
                if self.problem is not None:
                    raise QuestionRefused(self.problem, 409)
                if self._write(change):
                    return
        raise QuestionRefused(f"{self.name} is being written by another program; save again", 409)

    def _write(self, change: Callable[[str, Tables], str]) -> bool:
        """Write it once; return False if another program has written it meanwhile."""
        path = self._path.resolve()  # a link stays one
        by_hand = f"{self.name} writes this in another form than [zones.NAME] or [[watch]]; change it there by hand"
        try:
            tables = read_toml(path, self.name)
            data = path.read_bytes()
            new = change(data.decode("utf-8"), tables)
            if tomllib.loads(new) != tables:
                raise QuestionRefused(by_hand, 409)
            if path.read_bytes() != data:
                return False
            if new.encode("utf-8") != data:
                replace_file(path, path.with_name(f".{path.name}.new"), new)
        except tomllib.TOMLDecodeError as error:
            raise QuestionRefused(by_hand, 409) from error
        except ConfigError as error:
            raise QuestionRefused(str(error), 409) from error
        except ValidationError as error:
            raise QuestionRefused(f"{self.name} has an invalid watch; repair it first", 409) from error
        except OSError as error:
            raise QuestionRefused(f"cannot save to {self.name}: {error.strerror}", 409) from error
        return True


def saving_routes(hubs: Mapping[str, Hub], access: WebAccess) -> list[BaseRoute]:
    """Return the routes by which viewers who may ask save zones and watches of the cameras of `hubs`, by name."""
    cameras = named_cameras(hubs)
    rate = RateLimit(SAVES_A_SECOND, SAVES_AT_ONCE)

    def file_of(hub: Hub) -> SettingsFile:
        """Raises QuestionRefused."""
        if len(cameras) > 1 or hub.options.name:
            raise QuestionRefused(SEVERAL, 409)
        if hub.options.file is None:
            raise QuestionRefused(NO_FILE, 409)
        return SettingsFile(hub.options.file)

    def described(hub: Hub) -> Tables:
        changes = ChangedWatches.of(hub)
        watches = {"toml": changes.toml, "added": [watch.name for watch in changes.added], "removed": changes.removed}
        try:
            file = file_of(hub)
        except QuestionRefused as refusal:
            return {"file": None, "problem": str(refusal), "zones": [], "watches": watches}
        return {"file": file.name, "problem": file.problem, "zones": file.zones(), "watches": watches}

    async def settings(request: Request) -> Response:
        if not access.control:
            raise QuestionRefused(VIEW_ONLY, 403)
        if request.method != "POST":
            hub = cameras[chosen_camera(cameras, request.query_params.get("camera", ""))]
            return JSONResponse(await asyncio.to_thread(described, hub))
        try:
            wanted = _requests.decode(await body_of(request, SAVE_BYTES_MAX))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise QuestionRefused(f"nothing to save: {cut_to(str(error), 200)}", 400) from error
        if not rate.take(time.monotonic()):
            raise QuestionRefused("too much is saved at once; save again in a moment", 429)
        hub = cameras[chosen_camera(cameras, wanted.camera)]
        file = file_of(hub)
        if wanted.zone is not None:
            saved = await asyncio.to_thread(file.save_zone, wanted.zone, replace=wanted.replace)
        elif wanted.watches:
            saved = await asyncio.to_thread(file.save_watches, ChangedWatches.of(hub))
        else:
            raise QuestionRefused("nothing to save: give a zone, or watches", 400)
        return JSONResponse({"file": file.name, "saved": saved})

    return [Route("/api/settings", settings, methods=["GET", "POST"])]
