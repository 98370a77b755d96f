"""`serve-answers`: the answer stage for frame processes elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from stream import logs
from stream.commands.outcome import INTERRUPTED
from stream.commands.text_options import (
    Assignments,
    ConfigFiles,
    Device,
    Dtype,
    Encode,
    Key,
    Model,
    key_layers,
    text_option,
)
from stream.layers import build_config, file_layer, set_layer


def serve_answers(
    endpoint: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where to listen, such as tcp://0.0.0.0:5555.")],
    model: Model = None,
    encode: Encode = None,
    max_tokens: Annotated[
        str | None,
        text_option("--max-tokens", metavar="N", help="Longest answer, in tokens of text. [64]"),
        Key("answer.max_tokens"),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    keys: Annotated[
        str | None,
        text_option("--keys", metavar="FOLDER", help="Keys made by `keys`; only their holders may connect."),
        Key("network.keys"),
    ] = None,
    plain_tcp: Annotated[
        bool,
        typer.Option("--plain-tcp", help="Allow TCP without keys beyond this machine: anybody may connect."),
        Key("network.plain_tcp"),
    ] = False,
    config: ConfigFiles = None,
    set_: Assignments = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Run the model for runs on this machine or others.

    They are given this address with --server.
    """
    layers = [file_layer(name) for name in config or ()]
    layers += [set_layer(assignment) for assignment in set_ or ()]
    options = {"model": model, "encode": encode, "max_tokens": max_tokens, "device": device, "dtype": dtype}
    layers += key_layers(serve_answers, **options, keys=keys, plain_tcp=plain_tcp)
    made = build_config(layers)

    from stream.answer.model import model_name
    from stream.runtime.answer_worker import serve_answers as serve
    from stream.transport.curve import server_curve

    name = model_name(made)
    guarded = "for holders of a key" if server_curve(made.network, endpoint) else "without keys"
    logs.say(f"loading {name}")
    serve(made, endpoint, lambda: logs.say(f"{name} answers at {endpoint}, {guarded}; Ctrl-C ends"))
    return INTERRUPTED
