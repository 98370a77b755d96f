"""Episodes of LeRobot datasets: their file and time range, and messages for invalid addresses and datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError, SourceNotFound, SourceOver
from stream.media import Source, SourceFrame
from stream.recording.identity import source_fingerprint
from stream.sources.factory import open_source
from tests.support.clock import FakeClock
from tests.support.lerobot import FPS, GREYS, make_dataset

MS = 1_000_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("datasets") / "push")


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    """The same dataset, to be damaged."""
    return Path(shutil.copytree(dataset, tmp_path / "copy"))


def opened(folder: Path, choice: str, **capture: object) -> Source:
    return open_source(f"lerobot:{folder}#{choice}", CaptureConfig.model_validate(capture), FakeClock(1))


def frames_of(folder: Path, choice: str, **capture: object) -> list[SourceFrame]:
    with opened(folder, choice, **capture) as source:
        frames = list(source.frames())
        assert source.trailing_skipped() == ()
    return [frame for frame in frames if isinstance(frame, SourceFrame)]


def grey_of(frame: SourceFrame) -> float:
    """Brightness of the lower half, from luma of limited range."""
    return (float(np.mean(frame.planes.planes[0][24:])) - 16) * 255 / 219


@pytest.mark.parametrize(("episode", "count"), [(0, 8), (1, 5), (2, 12)])
def test_an_episode_is_its_own_frames_from_time_0(dataset: Path, episode: int, count: int) -> None:
    with opened(dataset, f"episode={episode}&camera=top") as source:
        info = source.describe()
    assert (info.frames, info.duration_ns, info.live) == (count, count * 1000 // FPS * MS, False)
    assert info.name == f"lerobot:{dataset}#episode={episode}&camera=top"
    frames = frames_of(dataset, f"episode={episode}&camera=top")
    assert [frame.media_ns for frame in frames] == [number * 100 * MS for number in range(count)]
    assert [frame.frame_index for frame in frames] == list(range(count))
    assert {round(grey_of(frame) / 10) * 10 for frame in frames} == {GREYS[episode]}


def test_a_camera_has_its_own_file_under_its_short_or_whole_name(dataset: Path) -> None:
    for name in ("wrist", "observation.images.wrist"):
        frames = frames_of(dataset, f"camera={name}&episode=1")
        assert [round(grey_of(frame)) for frame in frames] == pytest.approx([GREYS[1] - 10] * 5, abs=2)


def test_limits_that_are_rounded_lose_no_frame_and_take_none_of_another(copy: Path) -> None:
    import pyarrow.parquet

    table = next(copy.glob("meta/episodes/*/*.parquet"))
    rows = pyarrow.parquet.read_table(table)
    for column in [name for name in rows.column_names if name.endswith("timestamp")]:
        at = rows.column_names.index(column)
        shifted = [value + (0.02 if value else 0) for value in rows[column].to_pylist()]
        rows = rows.set_column(at, column, pyarrow.array(shifted))
    pyarrow.parquet.write_table(rows, table)
    frames = frames_of(copy, "episode=1&camera=top")
    assert [round(grey_of(frame) / 10) * 10 for frame in frames] == [GREYS[1]] * 5
    assert frames[0].media_ns == 0


def test_a_part_of_an_episode_keeps_the_episodes_times(dataset: Path) -> None:
    frames = frames_of(dataset, "episode=2&camera=top", start_s=0.25, duration_s=0.4)
    assert [frame.media_ns // MS for frame in frames] == [300, 400, 500, 600]
    beyond = frames_of(dataset, "episode=1&camera=top", start_s=0.3, duration_s=60.0)
    assert [frame.media_ns // MS for frame in beyond] == [300, 400]
    with pytest.raises(SourceOver, match=r"has no frame from 5 s on \(its length is 0\.5 s\); give an earlier --start"):
        opened(dataset, "episode=1&camera=top", start_s=5.0)


def test_one_episode_and_one_camera_need_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "1")  # the AV1 encoder prints its settings otherwise
    folder = make_dataset(tmp_path / "one", frames=(3,), cameras=("top",), codec="libsvtav1")
    with open_source(f"lerobot:{folder}", CaptureConfig(), FakeClock(1)) as source:
        assert source.describe().codec == "libdav1d"
        assert len(list(source.frames())) == 3


@pytest.mark.parametrize(
    ("choice", "kind", "message"),
    [
        ("", SourceError, "has several cameras; add &camera=NAME, one of top, wrist"),
        ("episode=0", SourceError, "has several cameras; add &camera=NAME, one of top, wrist"),
        ("camera=top", SourceError, "has 3 episodes, 0 to 2; add #episode=0 or another one"),
        ("episode=0&camera=left", SourceNotFound, "has no camera 'left'; there is top, wrist"),
        ("episode=3&camera=top", SourceNotFound, "has no episode '3'; it has 3 episodes, 0 to 2"),
        ("episode=-1&camera=top", SourceNotFound, "has no episode '-1'; it has"),
        ("episode=0000000003&camera=top", SourceNotFound, "has no episode '0000000003'; it has"),
        ("episode=1e9&camera=top", SourceNotFound, "has no episode '1e9'; it has"),
        ("episode=0&view=top", SourceError, "has 'episode=0&view=top' behind the #; write lerobot:FOLDER#episode="),
        ("3", SourceError, "has '3' behind the #; write lerobot:FOLDER#episode=0&camera=NAME"),
        ("episode=0&episode=1", SourceError, "behind the #; write"),
    ],
)
def test_an_address_that_fits_nothing_names_what_is_there(
    dataset: Path, choice: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        opened(dataset, choice)
    assert message in str(raised.value)


def with_info(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "meta" / "info.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def without(pattern: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return remove


def filled(pattern: str, text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.write_text(text)

    return fill


def with_rows(**columns: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        import pyarrow.parquet

        key = "videos/observation.images.top/"
        values = {"length": 8, "chunk_index": 0, "file_index": 0, "from_timestamp": 0.0, "to_timestamp": 0.8, **columns}
        rows = {name if name == "length" else key + name: [value] for name, value in values.items()}
        table = pyarrow.table({"episode_index": [0], **rows})
        pyarrow.parquet.write_table(table, folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")

    return write


TABLE = "meta/episodes/*/*.parquet"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("meta/info.json"), "has no meta/info.json; give the folder of a LeRobot dataset"),
        (filled("meta/info.json", "{"), "meta/info.json is not JSON; download the dataset again"),
        (filled("meta/info.json", "[]"), "of format unknown, not v3.0; give a dataset of format v3.0"),
        (with_info(codebase_version="v2.1"), "of format v2.1, not v3.0; there each episode is a file: give that"),
        (with_info(total_episodes="many"), "meta/info.json counts no episodes"),
        (with_info(features={"a": {"dtype": "image"}}), "has no videos: its pictures lie in tables, which are not"),
        (with_info(features=None), "has no videos: it has no cameras; give a dataset with videos"),
        (with_info(features={"../../top": {"dtype": "video"}}), "has no videos: it has no cameras"),
        (without(TABLE), "has episode 0; download the dataset again"),
        (filled(TABLE, "PAR1"), "file-000.parquet is not a table that can be read; download the dataset again"),
        (without("videos/*top/*/*.mp4"), "file-000.mp4, which holds episode 0, does not exist; download"),
        (filled("videos/*top/*/*.mp4", "no video"), "file-000.mp4 is not a video that FFmpeg can read"),
        (with_rows(to_timestamp=0.0), "episode 0 is empty by "),
        (with_rows(from_timestamp=float("nan")), "episode 0 is empty by "),
        (with_rows(file_index=float("inf")), "has no usable numbers for episode 0"),
        (with_rows(file_index=None), "has no usable numbers for episode 0; download the dataset again"),
        (with_rows(from_timestamp=70.0, to_timestamp=71.0), "has no frame from 70 to 71 s, where lerobot:"),
    ],
)
def test_a_dataset_that_is_damaged_says_so(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(SourceError) as raised:
        opened(copy, "episode=0&camera=top")
    assert message in str(raised.value)


def test_a_table_without_a_column_names_it(copy: Path) -> None:
    import pyarrow.parquet

    path = next(copy.glob(TABLE))
    pyarrow.parquet.write_table(pyarrow.table({"episode_index": [0]}), path)
    with pytest.raises(SourceError, match=r"has no column length; download the dataset again"):
        opened(copy, "episode=0&camera=top")


def test_no_folder_and_no_dataset_say_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"lerobot: names no folder; write lerobot:FOLDER#episode=0"):
        open_source("lerobot:", CaptureConfig(), FakeClock(1))
    with pytest.raises(SourceNotFound, match=r"does not exist, so there is no meta/info\.json; .*hf download"):
        opened(tmp_path / "none", "episode=0")


def test_losses_are_reported_in_the_episodes_time(copy: Path) -> None:
    video = next(copy.glob("videos/*top/*/*.mp4"))
    import av

    with av.open(str(video)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(video.read_bytes())
    for number in (2, 10):  # packet 3 is before the episode, packet 11 its third
        position, size = packets[number]
        data[position : position + size] = b"\xff" * size
    video.write_bytes(bytes(data))
    with opened(copy, "episode=1&camera=top") as source:
        frames = list(source.frames())
    losses = [item for frame in frames if isinstance(frame, SourceFrame) for item in frame.skipped]
    assert [item.media_ns for item in losses] == [200 * MS]


def test_a_run_can_be_resumed_if_the_dataset_is_the_same(copy: Path) -> None:
    address = f"lerobot:{copy}#episode=1&camera=top"
    before = source_fingerprint(address)
    assert before is not None
    assert source_fingerprint(address) == before
    assert source_fingerprint(f"lerobot:{copy}#episode=0&camera=top") != before
    with next(copy.glob("videos/*top/*/*.mp4")).open("ab") as video:
        video.write(b"more")
    assert source_fingerprint(address) != before
