"""Options that several commands have, and how an option becomes a layer of configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from stream.layers import Layer, option_layer, presets


@dataclass(frozen=True, slots=True)
class Key:
    """The configuration key that an option sets, in the option's annotation.

    `read` makes the key's value of the option's name and text; without it the text is a TOML value or bare text.
    """

    name: str
    read: Callable[[str, str], object] | None = None


def key_layers(owner: Callable[..., object], **given: object) -> list[Layer]:
    """A layer for each option of `owner` that was given and carries a key. Raises ConfigError.

    `given` has the options' values by their names: None, or False for a flag that only switches on, where nothing was
    given.
    """
    layers = []
    for name, hint in get_type_hints(owner, include_extras=True).items():
        kind, *details = get_args(hint) or (hint,)
        key = next((detail for detail in details if isinstance(detail, Key)), None)
        value = given.get(name)
        if key is None or value is None or (kind is bool and not value):
            continue
        option = f"--{name.replace('_', '-')}"
        if not isinstance(value, str):
            layers.append(Layer(option, {key.name: value}))
        elif key.read is not None:
            layers.append(Layer(option, {key.name: key.read(option, value)}))
        else:
            layers.append(option_layer(option, key.name, value))
    return layers


def text_option(*names: str, metavar: str, help: str) -> Any:
    """The option under all of its `names`; its default, which `help` tells, is not shown."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


Model = Annotated[
    str | None,
    text_option("--model", "-m", metavar="NAME", help="Folder or hub name of a Qwen-VL model. [bundled]"),
    Key("answer.model"),
]
Encode = Annotated[
    str | None,
    text_option(
        "--encode",
        metavar="NAME",
        help="What the vision encoder is given: sparse, incremental, prune, weighted, full. [sparse]",
    ),
    Key("answer.encode"),
]
Backend = Annotated[
    str | None,
    text_option("--backend", metavar="NAME", help="Where the texture lies: cpu, gl, cuda. [auto]"),
    Key("texture.backend"),
]
Device = Annotated[
    str | None,
    text_option("--device", metavar="NAME", help="Where the model runs: cpu, cuda, cuda:1... [auto]"),
    Key("answer.device"),
]
Dtype = Annotated[
    str | None,
    text_option(
        "--dtype", metavar="NAME", help="Numbers that the model computes with: float32, bfloat16, float16. [auto]"
    ),
    Key("answer.dtype"),
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
