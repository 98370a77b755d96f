"""The answer stage as a process of its own: what its parent starts, and what it does itself."""

from __future__ import annotations

import os
import sys
import threading
import traceback

import msgspec

from stream.answer_place import AnswerPlace
from stream.answering import answering
from stream.child import Child
from stream.config import Config
from stream.control import CancelledError, Control
from stream.pulse import Pulse
from stream.snapshot import SnapshotReader
from stream.speaker import open_speaker
from stream.stages.answer import AnswerStage
from stream.transport import SocketDirectory, Transport


class Orders(msgspec.Struct, frozen=True):
    """What the child must know."""

    endpoint: str
    directory: SocketDirectory
    snapshot: int
    pulse: int
    threads: int
    speaker: str
    config: str


def start_answer_process(
    config: Config, speaker: str, endpoint: str, directory: SocketDirectory, snapshot: int
) -> Child:
    """Starts the answer stage; it is reached at `endpoint`, and removes `directory` where its parent cannot."""
    threads = answer_threads()
    child = Child("answer", "stream.answer_process", (snapshot,), {"OMP_NUM_THREADS": str(threads)})
    orders = Orders(endpoint, directory, snapshot, child.pulse_writer, threads, speaker, config.model_dump_json())
    child.tell(msgspec.json.encode(orders))
    return child


def answer_threads() -> int:
    """Threads for the model: all cores but one, which the frame stages keep."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def main() -> int:
    """The child: runs the answer stage until its parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    orders = msgspec.json.decode(line, type=Orders)
    threading.Thread(target=_follow_parent, args=(orders.directory,), name="lifeline", daemon=True).start()
    pulse = Pulse(orders.pulse)

    import torch

    torch.set_num_threads(orders.threads)
    config = Config.model_validate_json(orders.config)
    transport = Transport()
    stage = AnswerStage(
        lambda: open_speaker(orders.speaker, config),
        AnswerPlace(orders.endpoint, ready=pulse.ready, answering=lambda: answering(config)),
        transport,
        Control(),
        SnapshotReader(orders.snapshot),
    )
    try:
        stage.run()
    except CancelledError:
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        transport.close()
    return 0


def _follow_parent(directory: SocketDirectory) -> None:
    """Ends this process when stdin ends: the parent is gone or wants no more, and may not be able to tidy up."""
    sys.stdin.buffer.read()
    directory.remove()
    os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking the model apart, which the parent would wait for
