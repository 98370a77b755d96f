"""Options that take a word, and those of them that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stream.layers import presets


def text_option(*names: str, metavar: str, help: str) -> Any:
    """The option under all of its `names`; its default, which `help` tells, is not shown."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


Model = Annotated[
    str | None, text_option("--model", "-m", metavar="NAME", help="Folder or hub name of a Qwen-VL model. [bundled]")
]
Encode = Annotated[
    str | None,
    text_option(
        "--encode",
        metavar="NAME",
        help="What the vision encoder is given: sparse, incremental, prune, weighted, full. [sparse]",
    ),
]
Backend = Annotated[
    str | None, text_option("--backend", metavar="NAME", help="Where the texture lies: cpu, gl, cuda. [auto]")
]
Device = Annotated[
    str | None, text_option("--device", metavar="NAME", help="Where the model runs: cpu, cuda, cuda:1... [auto]")
]
Dtype = Annotated[
    str | None,
    text_option(
        "--dtype", metavar="NAME", help="Numbers that the model computes with: float32, bfloat16, float16. [auto]"
    ),
]
ConfigFiles = Annotated[
    list[str] | None,
    text_option(
        "--config",
        "-c",
        metavar="FILE",
        help=f"TOML file or preset: {', '.join(presets())}; may be repeated, later ones win.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    text_option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Any key, such as answer.max_tokens=48; may be repeated. All keys: docs/cli.md",
    ),
]
