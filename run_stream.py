#!/usr/bin/env python3
"""The command: the script of a checkout, and `arr-coc-stream` of an installed wheel; alone it explains itself."""

import _signal  # type: ignore[import-not-found]  # built into Python; signal.py is a file
import os
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    """Run the command and return its exit status; refuse another package named `stream` before any of its code runs."""
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:  # as stream.start does once it is imported
        _signal.signal(_signal.SIGINT, lambda number, frame: os._exit(130))

    # Asked of Python's finders one by one: importlib.util is a file, and the working folder may still be on the path.
    specs = (finder.find_spec("stream", None) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec is not None), None)
    found = list(spec.submodule_search_locations or [spec.origin]) if spec is not None else [None]
    if found[0] is not None and os.path.realpath(found[0]) != os.path.realpath(os.path.join(ROOT, "stream")):
        print(
            f"error: {found[0]} is another package named stream, and is imported in place of this program's; take its "
            "folder out of PYTHONPATH, or install arr-coc-stream into a virtual environment of its own",
            file=sys.stderr,
        )
        return 2

    from stream.start import main as run

    return run()


if __name__ == "__main__":
    if ROOT not in sys.path:  # `python -P`, or PYTHONSAFEPATH
        sys.path.insert(0, ROOT)
    sys.exit(main())
