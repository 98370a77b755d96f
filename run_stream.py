#!/usr/bin/env python3
"""The command; `run_stream.py` alone explains itself."""

import sys

from stream.cli import main

if __name__ == "__main__":
    sys.exit(main())
