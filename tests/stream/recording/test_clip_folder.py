"""Folder of clips: own files only, limits that hold, private modes, and unfinished files of a killed run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stream.errors import OutputError
from stream.extensions.clips.folder import PART, ClipFolder, check_clip_folder, part_of
from stream.recording import clip_manifest
from stream.recording.clip_manifest import MANIFEST, ClipIndex, read_manifest
from tests.support.fragments import fragments_of, packets_of, video_file
from tests.support.full_disk import room_for

DAY_S = 86_400.0


def put(folder: ClipFolder, name: str, size: int = 10) -> Path:
    file = folder.create(name)
    file.append(b"x" * size)
    assert file.finish() == name
    return folder.path / name


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ClipFolder]:
    with closing(ClipFolder(str(tmp_path / "clips"))) as clip_folder:
        yield clip_folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {MANIFEST}


def test_only_the_user_can_read_it(folder: ClipFolder) -> None:
    path = put(folder, "a.jpg")
    assert [stat.S_IMODE(entry.stat().st_mode) for entry in (folder.path, path, folder.path / MANIFEST)] == [
        0o700,
        0o600,
        0o600,
    ]


def test_a_file_has_its_name_once_it_is_complete(folder: ClipFolder) -> None:
    file = folder.create("a.mp4")
    file.append(b"abc")
    assert names(folder.path) == {part_of("a.mp4")}
    assert ClipIndex(folder.path).find("a.mp4") is None
    file.finish()
    assert names(folder.path) == {"a.mp4"}
    assert ClipIndex(folder.path).find("a.mp4") == folder.path / "a.mp4"


def test_an_empty_file_is_not_kept(folder: ClipFolder) -> None:
    assert folder.create("a.mp4").finish() is None
    assert names(folder.path) == set()


def test_no_file_is_overwritten(folder: ClipFolder) -> None:
    (folder.path / "a.jpg").write_text("of the user")
    (folder.path / part_of("a-2.mp4")).write_text("being written")
    assert folder.free_stem("a") == "a-3"
    assert folder.free_stem("b") == "b"


def test_the_oldest_leave_a_full_folder(folder: ClipFolder, tmp_path: Path) -> None:
    with closing(ClipFolder(str(tmp_path / "small"), max_bytes=100)) as small:
        (small.path / "big.mp4").write_bytes(bytes(1000))
        for number in range(5):
            put(small, f"{number}.mp4", 30)
        assert names(small.path) == {"2.mp4", "3.mp4", "4.mp4", "big.mp4"}
        assert small.size_bytes == 90
        with pytest.raises(OSError, match=r"clips\.max_mib"):
            put(small, "5.mp4", 101)
        assert not [name for name in names(small.path) if name[0].isdigit()]


def test_open_files_count_and_stay(tmp_path: Path) -> None:
    with closing(ClipFolder(str(tmp_path / "clips"), max_bytes=100)) as folder:
        put(folder, "a.mp4", 50)
        growing = folder.create("b.mp4")
        growing.append(bytes(40))
        growing.append(bytes(40))
        assert names(folder.path) == {part_of("b.mp4")}
        with pytest.raises(OSError, match=r"clips\.max_mib"):
            growing.append(bytes(40))
        assert growing.size_bytes == 80
        assert growing.finish() == "b.mp4"


def test_old_files_are_deleted_at_the_start_and_later(tmp_path: Path) -> None:
    now = 1_000_000.0
    path = tmp_path / "clips"
    with closing(ClipFolder(str(path), now_s=lambda: now)) as folder:
        for name in ("old.jpg", "new.jpg"):
            put(folder, name)
    os.utime(path / "old.jpg", (now - 500, now - 500))
    os.utime(path / "new.jpg", (now - 50, now - 50))
    (path / "older.jpg").write_text("of the user")
    os.utime(path / "older.jpg", (0, 0))
    with closing(ClipFolder(str(path), max_age_s=100, now_s=lambda: now)) as folder:
        assert names(path) == {"new.jpg", "older.jpg"}
        now += 60
        folder.delete_old()
        assert names(path) == {"older.jpg"}
    assert read_manifest(path) == []


def test_a_clock_far_ahead_deletes_nothing_for_an_hour(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    began_s, running_s = 1_000_000.0, 0.0
    path = tmp_path / "clips"
    with closing(ClipFolder(str(path), now_s=lambda: began_s)) as folder:
        os.utime(put(folder, "a.jpg"), (began_s, began_s))
    wrong = began_s + 40 * DAY_S
    with closing(ClipFolder(str(path), None, DAY_S, lambda: wrong, lambda: running_s)) as folder:
        folder.delete_old()
        assert names(path) == {"a.jpg"}
        assert caplog.messages == [
            f"the clock is 40 days ahead of the newest of {path}: for an hour nothing there is deleted by age"
        ]
        running_s = 3600.0
        folder.delete_old()
        assert names(path) == set()


def test_a_limit_holds_for_the_files_of_earlier_runs(tmp_path: Path) -> None:
    path = tmp_path / "clips"
    with closing(ClipFolder(str(path))) as folder:
        for number in range(4):
            os.utime(put(folder, f"{number}.jpg", 30), (number, number))
    with closing(ClipFolder(str(path), max_bytes=70)):
        assert names(path) == {"2.jpg", "3.jpg"}


@pytest.mark.parametrize(
    "line", ["../victim.jpg", "/victim.jpg", "sub/victim.jpg", "victim.txt", ".victim.jpg", "victim.jpg\0.jpg", "..jpg"]
)
def test_a_manifest_names_no_other_files(tmp_path: Path, line: str) -> None:
    path = tmp_path / "clips"
    path.mkdir()
    (tmp_path / "victim.jpg").write_text("of the user")
    (path / MANIFEST).write_text(f"{line}\n")
    with closing(ClipFolder(str(path), max_bytes=1, max_age_s=1, now_s=lambda: 1e12)):
        assert (tmp_path / "victim.jpg").exists()
    assert ClipIndex(path).find(line) is None


def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    path = tmp_path / "clips"
    path.mkdir()
    (tmp_path / "victim").write_text("of the user")
    (path / MANIFEST).write_text("a.jpg\nb.jpg\n")
    (path / "a.jpg").symlink_to(tmp_path / "victim")
    (path / "b.jpg").mkdir()
    with closing(ClipFolder(str(path), max_age_s=1, now_s=lambda: 1e12)):
        assert (path / "a.jpg").is_symlink()
    assert ClipIndex(path).find("a.jpg") is None
    assert ClipIndex(path).find("b.jpg") is None
    assert (tmp_path / "victim").read_text() == "of the user"


def test_a_file_that_became_something_else_stays(tmp_path: Path) -> None:
    with closing(ClipFolder(str(tmp_path / "clips"), max_bytes=20)) as folder:
        path = put(folder, "a.jpg")
        path.unlink()
        path.mkdir()
        put(folder, "b.jpg", 15)
        assert path.is_dir()


def test_a_torn_line_and_a_strange_manifest_are_left_out(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == []
    (tmp_path / MANIFEST).write_bytes(b"a.jpg\nb.jpg\na.jpg\n\xff\xfe\nc.jp")
    assert read_manifest(tmp_path) == ["a.jpg", "b.jpg"]
    (tmp_path / MANIFEST).unlink()
    os.mkfifo(tmp_path / MANIFEST)
    assert read_manifest(tmp_path) == []


def test_the_manifest_does_not_grow(tmp_path: Path) -> None:
    with closing(ClipFolder(str(tmp_path / "clips"), max_bytes=30)) as folder:
        for number in range(600):
            put(folder, f"{number}.jpg")
        lines = (folder.path / MANIFEST).read_text().splitlines()
        assert len(lines) < 300
        assert lines[-3:] == ["597.jpg", "598.jpg", "599.jpg"]


def test_a_manifest_that_cannot_be_written_anew_stays(tmp_path: Path) -> None:
    path = tmp_path / "clips"
    (path / (MANIFEST + PART)).mkdir(parents=True)
    with closing(ClipFolder(str(path), max_bytes=30)) as folder:
        for number in range(600):
            put(folder, f"{number}.jpg")
        assert len((path / MANIFEST).read_text().splitlines()) == 600


def test_a_file_of_a_killed_run_is_cut_after_its_last_fragment(tmp_path: Path) -> None:
    first, second, *_ = fragments_of(str(video_file(tmp_path / "a.mp4", 3)))
    path = tmp_path / "clips"
    path.mkdir()
    (path / MANIFEST).write_text("v.mp4\nempty.mp4\np.jpg\n")
    (path / part_of("v.mp4")).write_bytes(first.init + first.data + second.data[:-7])
    (path / part_of("empty.mp4")).write_bytes(first.init)
    (path / part_of("p.jpg")).write_bytes(b"half a picture")
    (path / part_of("other.mp4")).write_bytes(b"of another program")
    with closing(ClipFolder(str(path))) as folder:
        assert names(path) == {"v.mp4", part_of("other.mp4")}
        assert folder.size_bytes == len(first.init + first.data)
    assert packets_of(path / "v.mp4") == packets_of(first.init + first.data)


def test_a_full_disk_leaves_what_was_whole(tmp_path: Path) -> None:
    with closing(ClipFolder(str(tmp_path / "clips"))) as folder:
        file = folder.create("a.mp4")
        file.append(bytes(1000))
        with room_for(1500), pytest.raises(OSError, match="large"):
            file.append(bytes(1000))
        assert (folder.path / part_of("a.mp4")).stat().st_size == 1000
        assert file.finish() == "a.mp4"
        assert (folder.path / "a.mp4").stat().st_size == 1000


def test_a_manifest_without_room_for_a_name_is_mended(folder: ClipFolder) -> None:
    put(folder, "a.jpg")
    with room_for(9), pytest.raises(OSError, match="No space left"):
        folder.create("b.jpg")
    assert (folder.path / MANIFEST).read_text() == "a.jpg\nb.j"
    put(folder, "c.jpg")
    assert read_manifest(folder.path) == ["a.jpg", "c.jpg"]


def test_a_name_that_cannot_be_given_leaves_nothing(folder: ClipFolder) -> None:
    file = folder.create("a.mp4")
    file.append(b"abc")
    (folder.path / "a.mp4").mkdir()
    with pytest.raises(OSError, match="directory"):
        file.finish()
    assert not (folder.path / part_of("a.mp4")).exists()


def test_a_run_without_matches_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "all" / "door"
    folder = ClipFolder(str(path))
    folder.create("a.mp4")
    folder.close()
    folder.close()
    assert not (tmp_path / "all").exists()


def test_two_runs_do_not_share_a_folder(folder: ClipFolder) -> None:
    with pytest.raises(OutputError, match="another run is writing clips"):
        ClipFolder(str(folder.path))


def test_folders_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for path, problem in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "no" / "such" / "folder", "make it first"),
    ):
        with pytest.raises(OutputError, match=problem):
            check_clip_folder(str(path))
        with pytest.raises(OutputError, match=problem):
            ClipFolder(str(path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    for path in (tmp_path, tmp_path / "new"):
        with pytest.raises(OutputError, match="Permission denied"):
            check_clip_folder(str(path))
    monkeypatch.undo()
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "not here")))
    with pytest.raises(OutputError, match="not here"):
        ClipFolder(str(tmp_path / "new"))


def test_files_with_another_name_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "clips"
    path.mkdir()
    victim = tmp_path / "letter.txt"
    victim.write_text("of the user")
    (path / MANIFEST).write_text("hard.mp4\nsoft.mp4\nhard.jpg\n")
    os.link(victim, path / part_of("hard.mp4"))
    os.link(victim, path / part_of("hard.jpg"))
    os.link(victim, path / (MANIFEST + PART))
    (path / part_of("soft.mp4")).symlink_to(victim)
    with closing(ClipFolder(str(path), max_bytes=1000)) as folder:
        put(folder, "a.jpg")
        put(folder, "b.jpg", 995)
        assert victim.read_text() == "of the user"
        assert {part_of("hard.mp4"), part_of("hard.jpg"), part_of("soft.mp4")} < names(path)


@pytest.mark.parametrize("make", [os.link, os.symlink, lambda _, path: os.mkfifo(path)])
def test_a_manifest_that_is_a_link_is_replaced(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    path = tmp_path / "clips"
    path.mkdir()
    victim = tmp_path / "letter.txt"
    victim.write_text("of the user")
    make(victim, path / MANIFEST)
    with closing(ClipFolder(str(path))) as folder:
        put(folder, "a.jpg")
    assert victim.read_text() == "of the user"
    assert read_manifest(path) == ["a.jpg"]


def test_a_manifest_that_becomes_a_link_is_not_written(folder: ClipFolder, tmp_path: Path) -> None:
    put(folder, "a.jpg")
    os.link(folder.path / MANIFEST, tmp_path / "backup")
    with pytest.raises(OSError, match="is a link or no file"):
        folder.create("b.jpg")
    assert (tmp_path / "backup").read_text() == "a.jpg\n"


def test_the_newest_names_of_a_long_manifest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MANIFEST).write_text("".join(f"{number:04}.jpg\n" for number in range(1000)))
    monkeypatch.setattr(clip_manifest, "MANIFEST_BYTES_MAX", 9 * 10 + 4)
    assert read_manifest(tmp_path)[-10:] == [f"{number:04}.jpg" for number in range(990, 1000)]


def test_a_manifest_is_read_again_only_if_it_changed(folder: ClipFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(path: Path) -> list[str]:
        reads.append(path)
        return read_manifest(path)

    monkeypatch.setattr(clip_manifest, "read_manifest", read)
    index = ClipIndex(folder.path)
    assert index.find("a.jpg") is None
    path = put(folder, "a.jpg")
    assert [index.find("a.jpg") for _ in range(5)] == [path] * 5
    assert index.find("b.jpg") is None
    assert len(reads) == 1, "there was none at first"
