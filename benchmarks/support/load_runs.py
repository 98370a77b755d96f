"""One load of a model in this process, as JSON: `python -m benchmarks.support.load_runs FOLDER DTYPE [--cache]`.

`seconds` and `cpu_s` of `load_qwen`, without imports, and memory in MiB: `peak_mib` while loading, `held_mib` after a
first answer, by when all mapped weights have been read.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.loading import load_qwen
from benchmarks.support.harness import resident_mib


def main(folder: str, dtype: str, *options: str) -> None:
    load_qwen(None, device="cpu").embed([0])  # imports transformers
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    qwen = load_qwen(folder, device="cpu", dtype=dtype, cache_weights="--cache" in options)
    figures = {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
    figures["peak_mib"] = resident_mib("self")
    ARRCOCQwen(qwen).generate(np.zeros((256, 256, 3), np.uint8), "What is there?", 2)
    figures["held_mib"] = resident_mib("self", "VmRSS")
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
