"""One picture and question at Qwen3-VL-2B's dimensions: this project, stock transformers, llama.cpp, OpenVINO GenAI.

    python -m benchmarks.peers [--rounds N] [--answers N] [--tokens N] [--threads N] [--ways WAY …] [--clips FOLDER]
        [--model FOLDER] [--openvino PYTHON] [--out FILE]

Weights are random, in bfloat16 in a temporary folder (4.3 GB), and for llama.cpp in files that are made of it (3.4 GB),
for which the packages `gguf` and `xllamacpp` have to be installed. The export of OpenVINO needs older packages
(`support/openvino_files.py`), which lie in another environment, whose PYTHON is given.

The picture is a frame of 1280×720. A way is a program with its precision and share of the picture's 920 tokens;
llama.cpp scales the picture to as many, and for OpenVINO it is scaled before. `pruned`: OpenVINO prunes the tokens of
the whole picture. `memory`: later answers about a quiet scene. Ways take turns, each in new processes; the first answer
of a process is not counted. Times are of the processor, since other programs on the machine change them less, by
default with one thread, because waiting threads of llama.cpp compute on.
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

from arr_coc.resources import CHECKOUT
from benchmarks.support.clips import CLIPS
from benchmarks.support.gguf_files import write_text, write_vision
from benchmarks.support.harness import write_report
from benchmarks.support.openvino_files import export
from benchmarks.whole_model import material
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "peers.json"
FRAME = 59
"""Number of the clip's frame that is asked about."""

PICTURE, EXPORTED = "picture.png", "openvino"
"""Names of the picture and of OpenVINO's model in the temporary folder."""

SHARES = {"27%": 248, "10%": 92}
"""Tokens to which llama.cpp scales the picture for a share of 920."""

SIZES = {"27%": "640x384", "10%": "416x224", "100%": "1280x736"}
"""Sizes to which the picture is scaled for OpenVINO: 240, 91 and 920 tokens."""

WAYS = (
    *(f"ours {dtype} {budget}" for budget in ("27%", "10%", "100%") for dtype in ("int8", "int4", "bfloat16")),
    *(f"llama.cpp {kind} {share}" for share in SHARES for kind in ("Q8_0", "Q4_0")),
    *(f"ours {dtype} 27% memory" for dtype in ("int8", "int4")),
    "transformers bfloat16",
    "transformers float32",
    *(f"openvino int8 {share}" for share in SIZES),
    *(f"openvino int8 {share} pruned" for share in SHARES),
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
    if program not in ("llama.cpp", "openvino"):
        return [program, *options]
    kind, share, *pruned = options
    if program == "openvino":
        return [program, SIZES["100%" if pruned else share], str(100 - int(share[:-1]) if pruned else 0)]
    return [program, str(files / f"{kind}.gguf"), str(files / "vision.gguf"), str(SHARES[share])]


def measure_way(way: str, model: Path, files: Path, numbers: Sequence[str], openvino: str | None) -> dict[str, Any]:
    """Return what the process of a way reports.

    Args:
        way: One of WAYS.
        model: Folder of the model.
        files: Folder of the picture and of the other programs' models.
        numbers: Tokens of an answer, answers and threads.
        openvino: The Python that runs OpenVINO.
    """
    module, options = "benchmarks.support.peer_runs", [str(files / PICTURE), *numbers, *arguments_of(way, files)]
    command, environment = python_command(module, str(model), *options), python_environment()
    if way.startswith("openvino"):
        command = [str(openvino), "-m", module, str(files / EXPORTED), *options]
        environment = python_environment({"PYTHONPATH": str(CHECKOUT)})
        environment.pop("PYTHONSAFEPATH")
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over all answers of a way's processes, and the largest memory."""
    answers = [answer for run in runs for answer in run["answers"]]
    medians = {name: round(statistics.median(answer[name] for answer in answers), 3) for name in answers[0]}
    return {"tokens": runs[0]["tokens"], **medians, "peak_mib": max(run["peak_mib"] for run in runs)}


def ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the first and a further token of our ways against those of other programs, if both have run."""
    local_ways = [way for way in rows if way.startswith("ours")]
    others = [way for way in rows if not way.startswith("ours")]
    return {
        f"{way} ÷ {other}": {
            name: round(rows[way][f"{name}_cpu_s"] / rows[other][f"{name}_cpu_s"], 2) for name in ("first", "token")
        }
        for way in local_ways
        for other in others
        if other.startswith("transformers") or other.split()[2] in ("100%", way.split()[2])
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
    parser.add_argument("--openvino", metavar="PYTHON", help="of an environment with OpenVINO; else it is left out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    ways = [way for way in arguments.ways if arguments.openvino or not way.startswith("openvino")]
    numbers = [str(number) for number in (arguments.tokens, arguments.answers, arguments.threads)]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    report: dict[str, Any] = {"benchmark": "peers", "machine": machine(), "threads": arguments.threads}
    with material(arguments.clips, arguments.model) as (model, clip), tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary)
        save_frame(clip, files / PICTURE)
        kinds = {way.split()[1] for way in ways if way.startswith("llama.cpp")}
        for kind in sorted(kinds):
            write_text(model, files / f"{kind}.gguf", kind)
        if kinds:
            write_vision(model, files / "vision.gguf")
        if any(way.startswith("openvino") for way in ways):
            export(arguments.openvino, model, files / EXPORTED)
        for _ in range(arguments.rounds):
            for way in ways:
                runs[way].append(measure_way(way, model, files, numbers, arguments.openvino))
                rows = {name: row(results) for name, results in runs.items() if results}
                report |= {"ways": rows, "ratios": ratios(rows)}
                write_report(arguments.out, report)
                print(f"{way:24}" + "  ".join(f"{name} {value:g}" for name, value in rows[way].items()), flush=True)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
