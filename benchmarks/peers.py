"""One picture and question at Qwen3-VL-2B's dimensions: this project, stock transformers, and llama.cpp.

    python -m benchmarks.peers [--rounds N] [--answers N] [--tokens N] [--threads N] [--ways WAY …] [--clips FOLDER]
        [--model FOLDER] [--out FILE]

Weights are random, in bfloat16 in a temporary folder (4.3 GB), and for llama.cpp in files that are made of it (3.4 GB),
for which the packages `gguf` and `xllamacpp` have to be installed. The picture is a frame of 1280×720. A way is a
program with its precision and share of the picture's 920 tokens; llama.cpp scales the picture to as many. Ways take
turns, each in new processes; the first answer of a process is not counted. Times are of the processor, since other
programs on the machine change them less, by default with one thread, because waiting threads of llama.cpp compute on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av

from benchmarks.support.clips import CLIPS
from benchmarks.support.gguf_files import write_text, write_vision
from benchmarks.support.harness import write_report
from benchmarks.whole_model import material
from stream.bench.report import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "peers.json"
FRAME = 59
"""Number of the clip's frame that is asked about."""

SHARES = {"27%": 248, "10%": 92}
"""Tokens to which llama.cpp scales the picture for a share of 920."""

WAYS = (
    *(f"ours {dtype} {budget}" for budget in ("27%", "10%", "100%") for dtype in ("int8", "int4", "bfloat16")),
    *(f"llama.cpp {kind} {share}" for share in SHARES for kind in ("Q8_0", "Q4_0")),
    "transformers bfloat16",
)


def save_frame(clip: Path, picture: Path) -> None:
    """Write frame number FRAME of a clip as a picture."""
    with av.open(str(clip)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number == FRAME:
                frame.to_image().save(picture)
                return


def arguments_of(way: str, files: Path) -> list[str]:
    """Return the arguments of a way's process. Files of llama.cpp are made when they are first needed."""
    program, *options = way.split()
    if program != "llama.cpp":
        return [program, *options]
    kind, share = options
    return [program, str(files / f"{kind}.gguf"), str(files / "vision.gguf"), str(SHARES[share])]


def row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over all answers of a way's processes, and the largest memory."""
    answers = [answer for run in runs for answer in run["answers"]]
    medians = {name: round(statistics.median(answer[name] for answer in answers), 3) for name in answers[0]}
    return {"tokens": runs[0]["tokens"], **medians, "peak_mib": max(run["peak_mib"] for run in runs)}


def ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the first and a further token of our ways against those of other programs, if both have run."""
    own = [way for way in rows if way.startswith("ours")]
    others = [way for way in rows if not way.startswith("ours")]
    return {
        f"{way} ÷ {other}": {
            name: round(rows[way][f"{name}_cpu_s"] / rows[other][f"{name}_cpu_s"], 2) for name in ("first", "token")
        }
        for way in own
        for other in others
        if other.startswith("transformers") or other.split()[-1] == way.split()[-1]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="processes of each way")
    parser.add_argument("--answers", type=int, default=3, help="of a process")
    parser.add_argument("--tokens", type=int, default=12, help="of an answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with real clips")
    parser.add_argument("--model", type=Path, help="folder of a model to measure in place of random weights")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    numbers = [str(number) for number in (arguments.tokens, arguments.answers, arguments.threads)]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    report: dict[str, Any] = {"benchmark": "peers", "machine": machine(), "threads": arguments.threads}
    with material(arguments.clips, arguments.model) as (model, clip), tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary)
        picture = files / "picture.png"
        save_frame(clip, picture)
        kinds = {way.split()[1] for way in arguments.ways if way.startswith("llama.cpp")}
        for kind in sorted(kinds):
            write_text(model, files / f"{kind}.gguf", kind)
        if kinds:
            write_vision(model, files / "vision.gguf")
        for _ in range(arguments.rounds):
            for way in arguments.ways:
                command = python_command(
                    "benchmarks.support.peer_runs", str(model), str(picture), *numbers, *arguments_of(way, files)
                )
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=python_environment())
                runs[way].append(json.loads(done.stdout.splitlines()[-1]))
                rows = {name: row(taken) for name, taken in runs.items() if taken}
                report |= {"ways": rows, "ratios": ratios(rows)}
                write_report(arguments.out, report)
                print(f"{way:24}" + "  ".join(f"{name} {value:g}" for name, value in rows[way].items()), flush=True)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
