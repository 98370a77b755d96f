"""Episodes of local LeRobot datasets (format 3): the video file of each, and its time range in the file.

`meta/info.json` names cameras and counts episodes; tables in `meta/episodes/` give an episode's file in
`videos/CAMERA/chunk-000/` and its start and end (https://huggingface.co/docs/lerobot/lerobot-dataset-v3). This module
opens no video.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from arr_coc.errors import counted
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import SourceError, SourceNotFound
from stream.extensions.lerobot import LEROBOT
from stream.sources.address import LEROBOT_PREFIX, chosen_index

EXAMPLE = f"{LEROBOT_PREFIX}FOLDER#episode=0&camera=NAME"

INFO = Path("meta", "info.json")

AGAIN = "download the dataset again"

_SHOWN = 12
"""Limit of names that a message lists."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Episode of one camera: part of `video`, in seconds of its media time, with `frames` frames at `fps`."""

    name: str
    video: Path
    from_s: float
    to_s: float
    frames: int
    fps: float


@dataclass(frozen=True, slots=True)
class EpisodeAddress:
    """Address `lerobot:FOLDER#episode=N&camera=NAME` of an episode that its dataset lists.

    `key` is the camera's name in the dataset, such as `observation.images.top` for `top`.
    """

    folder: Path
    episode: int
    key: str
    fps: float

    @classmethod
    def of(cls, address: str) -> EpisodeAddress:
        """Parse an address and read its dataset's `meta/info.json`.

        Raises SourceNotFound if there is no such dataset, episode or camera, and SourceError for an unusable address
        or dataset, or a missing library.
        """
        text = address.removeprefix(LEROBOT_PREFIX)
        place, _, choice = text.rpartition("#") if "#" in text else (text, "", "")
        if not place:
            raise SourceNotFound(f"{address} names no folder; write {EXAMPLE}")
        try:
            pairs = parse_qsl(choice, keep_blank_values=True, strict_parsing=bool(choice))
        except ValueError:
            pairs = [("", choice)]
        fields = dict(pairs)
        if len(fields) < len(pairs) or not set(fields) <= {"episode", "camera"}:
            raise SourceError(f"{address} has {choice!r} behind the #; write {EXAMPLE}")
        folder = Path(place).expanduser()
        info = _info(folder)
        key = _camera(folder, info, fields.get("camera"))
        episode = _number(folder, info, fields.get("episode"))
        LEROBOT.require(LEROBOT_PREFIX, SourceError)
        fps = info.get("fps")
        if not isinstance(fps, (int, float)) or not 0 < fps <= 1000:
            fps = 30.0
        return cls(folder, episode, key, float(fps))

    def find(self) -> Episode:
        """Look up the episode in the dataset's tables. Raises SourceError if they cannot be read or lack it."""
        for table in sorted(self.folder.glob("meta/episodes/*/*.parquet")):
            for row in _rows(table, self._columns):
                if row["episode_index"] == self.episode:
                    return self._locate(row, table)
        raise SourceError(f"no table in {self.folder / 'meta' / 'episodes'} has episode {self.episode}; {AGAIN}")

    @property
    def _columns(self) -> list[str]:
        names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        return ["episode_index", "length", *(f"videos/{self.key}/{name}" for name in names)]

    def _locate(self, row: Mapping[str, Any], table: Path) -> Episode:
        _, frames, chunk, file, from_s, to_s = (row[column] for column in self._columns)
        try:
            video = self.folder / "videos" / self.key / f"chunk-{int(chunk):03d}" / f"file-{int(file):03d}.mp4"
            from_s = float(from_s)
            to_s = float(to_s)
            frames = int(frames)
        except (TypeError, ValueError, OverflowError) as error:
            raise SourceError(f"{table} has no usable numbers for episode {self.episode}; {AGAIN}") from error
        if not (0 <= from_s < to_s < math.inf and frames > 0):
            raise SourceError(f"episode {self.episode} is empty by {table}; {AGAIN}")
        if not video.is_file():
            raise SourceNotFound(f"{video}, which holds episode {self.episode}, does not exist; {AGAIN}")
        name = f"{LEROBOT_PREFIX}{self.folder}#episode={self.episode}&camera={_short(self.key)}"
        return Episode(name, video, from_s, to_s, frames, self.fps)


def _info(folder: Path) -> dict[str, Any]:
    path = folder / INFO
    try:
        if not path.is_file():
            if folder.is_dir():
                problem = "has no"
            else:
                problem = "does not exist, so there is no"
            raise SourceNotFound(
                f"{folder} {problem} {INFO}; give the folder of a LeRobot dataset (hf download --repo-type dataset "
                "OWNER/NAME --local-dir FOLDER)"
            )
        with path.open("rb") as file:
            values = json.loads(file.read(16 << 20))
    except SourceNotFound:
        raise
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; change its permissions") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON; {AGAIN}") from error
    if isinstance(values, dict):
        version = values.get("codebase_version")
    else:
        version = None
    if not isinstance(version, str) or not version.startswith("v3."):
        if isinstance(version, str) and version.startswith("v2."):
            remedy = "there each episode is a file: give that, such as videos/chunk-000/CAMERA/episode_000000.mp4"
        else:
            remedy = "give a dataset of format v3.0"
        raise SourceError(f"{folder} is a LeRobot dataset of format {version or 'unknown'}, not v3.0; {remedy}")
    return dict(values)


def _camera(folder: Path, info: Mapping[str, Any], name: str | None) -> str:
    """Return the key of the chosen camera, or of the only one."""
    features = info.get("features")
    kinds = {
        str(key): feature.get("dtype")
        for key, feature in (features.items() if isinstance(features, dict) else ())
        if isinstance(feature, dict)
    }
    keys = [key for key, kind in kinds.items() if kind == "video" and "/" not in key and ".." not in key]
    names = ", ".join(_short(key) for key in keys[:_SHOWN])
    if len(keys) > _SHOWN:
        names += ", ..."
    if name is None:
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise SourceError(f"{folder} has several cameras; add &camera=NAME, one of {names}")
    elif keys:
        matches = [key for key in keys if name in (key, _short(key))]
        if len(matches) == 1:
            return matches[0]
        raise SourceNotFound(f"{folder} has no camera {name!r}; there is {names}")
    if "image" in kinds.values():
        pictures = "its pictures lie in tables, which are not read"
    else:
        pictures = "it has no cameras"
    raise SourceError(f"{folder} has no videos: {pictures}; give a dataset with videos")


def _number(folder: Path, info: Mapping[str, Any], text: str | None) -> int:
    """Return the number of the chosen episode, or of the only one."""
    count = info.get("total_episodes")
    if not isinstance(count, int) or count < 1:
        raise SourceError(f"{folder / INFO} counts no episodes; {AGAIN}")
    if count == 1:
        episodes = "only episode 0"
    else:
        episodes = f"{counted(count, 'episode')}, 0 to {count - 1}"
    if text is None:
        if count == 1:
            return 0
        raise SourceError(f"{folder} has {episodes}; add #episode=0 or another one")
    number = chosen_index(text, count)
    if number is None:
        raise SourceNotFound(f"{folder} has no episode {text!r}; it has {episodes}")
    return number


def _short(key: str) -> str:
    """Return the last part of a camera's key: `top` of `observation.images.top`."""
    return key.rpartition(".")[2]


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with these columns. Raises SourceError if it lacks one or cannot be read."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            missing = [column for column in columns if column not in table.schema_arrow.names]
            if missing:
                raise SourceError(f"{path} has no column {missing[0]}; {AGAIN}")
            for batch in table.iter_batches(columns=columns, use_threads=False):
                yield from batch.to_pylist()
    except SourceError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} is not a table that can be read; {AGAIN}") from error


def check(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError for an invalid address, and for an episode that is not there."""
    EpisodeAddress.of(address)
