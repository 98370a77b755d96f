"""Cost of the texture and of the allocator's work on a CUDA device, against targets for an H200-class GPU.

    python -m benchmarks.gpu [--rounds N] [--size 1920x1080] [--updates N] [--out FILE]

At 1080p, one block of 10 % of the tiles changes. *Device* times are between two CUDA events, with the device held busy
until the host has given it everything, so that nothing but the work itself is measured (`update_tensor` and
`frame_tensor` wait for the device in between, and so count a round trip). *Wall* times are the host's, from the first
call until the device is done.

`upload` is a frame's tiles that are converted already: packing, one copy, one kernel for all levels. `update` takes a
4:2:0 frame from ordinary memory, which the host compares and converts; `update_tensor` an RGB frame that is on the
device. `frame` is what a live frame costs altogether: update, channels, scores, blending and the choice of 273 tokens
by a `StreamAllocator` on the device; `frame_tensor` the same for a frame on the device, `answer` with the packet that
is made of it.

Then one tile is updated 100 000 times, and what the process holds must not grow.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from arr_coc.backends.cuda import device as compiling
from arr_coc.backends.cuda.device import CudaDevice, call, find_device
from benchmarks.support.harness import write_report
from stream.extensions.doctor.gpu.stores import SETTLING, measure_leaks
from stream.extensions.doctor.gpu.timing import TARGETS_MS, Timer, make_scene, pieces
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "gpu.json"


def target_rows(results: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Each target, beside the median that was measured."""
    return [
        {"what": subject, "time": kind, "target_ms": target, "p50_ms": results[subject][kind]["p50"]}
        | {"reached": results[subject][kind]["p50"] <= target}
        for (subject, kind), target in TARGETS_MS.items()
    ]


def gpu_of(device: CudaDevice) -> dict[str, Any]:
    """Names of GPU and driver, and the origin of the kernels."""
    driver = call("cuDriverGetVersion")
    about: dict[str, Any] = {
        "cuda_driver": f"{driver // 1000}.{driver % 1000 // 10}",
        "torch_cuda": torch.version.cuda,
        "kernels": "compiled by nvcc" if compiling.nvcc() else "shipped PTX",
    }
    if device.place.type == "cuda":
        properties = torch.cuda.get_device_properties(device.place)
        about |= {"gpu": properties.name, "capability": f"{properties.major}.{properties.minor}"}
    return about


def run(size: tuple[int, int], rounds: int, updates: int, settling: int = SETTLING) -> dict[str, Any]:
    """Everything, as it is written to the file.

    Args:
        size: (height, width) in pixels.
        rounds: Rounds of each piece.
        updates: Updates over which the growth of memory is measured.
        settling: Updates before those.
    """
    device = find_device()
    with device.current():
        scene = make_scene(*size, device.place)
        timer = Timer(device, rounds)
        results = {name: timer.measure(work) for name, work in pieces(scene).items()}
        leak = measure_leaks(device, updates, settling)
    return {
        "benchmark": "gpu",
        "machine": machine() | gpu_of(device),
        "size": f"{size[1]}x{size[0]}",
        "dirty_share": round(float(scene.dirty.mean()), 4),
        "milliseconds": results,
        "targets": target_rows(results),
        "leaks": leak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="how often each piece is timed")
    parser.add_argument("--size", default="1920x1080", help="WIDTHxHEIGHT of the frames")
    parser.add_argument("--updates", type=int, default=100_000, help="updates after which nothing may have grown")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    report = run((height, width), arguments.rounds, arguments.updates)
    for name, times in report["milliseconds"].items():
        print(f"{name:14} device {times['device']['p50']:8.4f} ms   wall {times['wall']['p50']:8.4f} ms")
    for target in report["targets"]:
        verdict = "reached" if target["reached"] else "MISSED"
        print(f"{target['what']} {target['time']}: {target['p50_ms']} of {target['target_ms']} ms, {verdict}")
    print(f"after {report['leaks']['updates']} updates grown by {report['leaks']['grown']}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
