"""`python -m scripts.import_time MODULE`: processor seconds that importing a module takes after torch."""

from __future__ import annotations

import importlib
import sys
import time

import torch  # noqa: F401  (loaded before the measurement)

if __name__ == "__main__":
    started_s = time.process_time()
    importlib.import_module(sys.argv[1])
    print(time.process_time() - started_s)
