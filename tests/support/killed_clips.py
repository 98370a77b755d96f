"""Writers of clips that are killed within a write: `python -m tests.support.killed_clips VIDEO FOLDER COUNT`.

Each of COUNT processes, one after the other, writes clips into FOLDER until it has written a part of the data of some
call, or renamed a file, and then kills itself. Every file that has its name must be whole after each.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream.config import Config
from stream.events import VideoFragment
from stream.extensions.clips import sink as module
from stream.extensions.clips.folder import ClipFolder
from stream.extensions.clips.section import ClipsSection
from stream.extensions.clips.sink import ClipSink
from stream.recording.clip_manifest import read_manifest
from tests.support.events import match
from tests.support.fragments import fragments_of, times_of


def write_until_killed(folder: Path, fragments: list[VideoFragment], chance: random.Random) -> None:
    """Write clips, and die within the call of a number that is drawn."""
    left = chance.randrange(1, 60)
    part = chance.random()

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if call is write:
                    descriptor, data = arguments
                    write(descriptor, bytes(data)[: int(len(data) * part)])
                elif part > 0.5:
                    call(*arguments, **keywords)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return wrapped

    write = os.write
    for name in ("write", "rename", "unlink"):
        setattr(os, name, dying(getattr(os, name)))
    module.MIB = 60_000  # some clips: all are decoded after each kill
    section = ClipsSection(folder=str(folder), max_mib=1, before_s=1, after_s=2)
    sink = ClipSink(Config(source="yard.mp4", clips=section))
    number = 0
    while True:
        for fragment in fragments:
            sink.write(fragment)
            number += 1
            if number % 4 == 0:
                sink.write(match(fragment.start_s, number))


def check(folder: Path) -> None:
    """Raise AssertionError if a file with a name is not whole, or the next start leaves anything else."""
    before = {path: path.stat().st_size for path in folder.glob("*.mp4") if path.name != "mine.mp4"}
    assert all(times_of(path) for path in before)
    ClipFolder(str(folder)).close()
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]
    after = [path for path in folder.glob("*.mp4") if path.name != "mine.mp4"]
    assert set(before) <= set(after)
    assert all(times_of(path) for path in after)
    assert {path.name for path in after} <= set(read_manifest(folder))
    assert (folder / "mine.mp4").read_text() == "of the user"


def main() -> None:
    video, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir()
    (folder / "mine.mp4").write_text("of the user")
    fragments = fragments_of(video)
    for seed in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                write_until_killed(folder, fragments, random.Random(seed))
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"the process of seed {seed} was not killed: {status}"
        check(folder)
    sys.stdout.write(f"{len(list(folder.glob('*.mp4'))) - 1} clips\n")


if __name__ == "__main__":
    main()
