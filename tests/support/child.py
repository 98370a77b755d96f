"""A child process that imports next to nothing and obeys the first line on its stdin."""

from __future__ import annotations

import os
import sys
import threading

from stream.runtime.child import Heartbeat


def main() -> None:
    order, _, rest = sys.stdin.readline().strip().partition(" ")
    if order == "exit":
        status, _, text = rest.partition(" ")
        print(text, flush=True)
        os._exit(int(status))
    if order == "beat":
        Heartbeat(int(rest)).ready()
    if order == "print":
        print(os.environ["FAKE_CHILD"], flush=True)
    if order == "modules":
        print(*sys.modules, flush=True)
    sys.stdin.read()
    if order == "stay":
        threading.Event().wait()


if __name__ == "__main__":
    main()
