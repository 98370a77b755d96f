#!/usr/bin/env python3
"""The command; `run_stream.py` alone explains itself."""

import os
import sys

if __name__ == "__main__":
    root = os.path.dirname(os.path.abspath(__file__))
    if root not in sys.path:  # `python -P`, or PYTHONSAFEPATH
        sys.path.insert(0, root)

    from stream.start import main

    sys.exit(main())
