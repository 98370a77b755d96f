"""The command with a fake answer model: `python -m tests.support.fake_command FRAME ARGUMENTS…`.

With `--single-process` it is killed while it speaks about that frame.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    from stream import cli
    from stream.runtime.frame_process import run_in_child
    from stream.runtime.frame_stages import run_in_threads
    from tests.support import answer_models

    def die(frame_index: int) -> None:
        if frame_index == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    answer_models.on_packet = die
    for run in (run_in_threads, run_in_child):
        defaults = run.__kwdefaults__
        assert defaults is not None
        defaults["model_loader"] = "tests.support.answer_models:FakeAnswerModel"
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
