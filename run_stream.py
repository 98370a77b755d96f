#!/usr/bin/env python3
"""The command; `run_stream.py` alone explains itself."""

import _signal  # type: ignore[import-not-found]  # built into Python; signal.py is a file
import os
import sys

if __name__ == "__main__":
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:  # as stream.start does once it is imported
        _signal.signal(_signal.SIGINT, lambda number, frame: os._exit(130))

    root = os.path.dirname(os.path.abspath(__file__))
    if root not in sys.path:  # `python -P`, or PYTHONSAFEPATH
        sys.path.insert(0, root)

    from stream.start import main

    sys.exit(main())
