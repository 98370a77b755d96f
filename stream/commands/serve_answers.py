"""`serve-answers`: the answer stage for frame processes elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from stream import logs
from stream.commands.outcome import INTERRUPTED
from stream.commands.text_options import Assignments, ConfigFiles, Device, Dtype, Encode, Model, text_option
from stream.layers import Layer, build_config, file_layer, option_layer, set_layer

KEYS = {
    "--model": "answer.model",
    "--encode": "answer.encode",
    "--max-tokens": "answer.max_tokens",
    "--device": "answer.device",
    "--dtype": "answer.dtype",
    "--keys": "network.keys",
}


def serve_answers(
    endpoint: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where to listen, such as tcp://0.0.0.0:5555.")],
    model: Model = None,
    encode: Encode = None,
    max_tokens: Annotated[
        str | None, text_option("--max-tokens", metavar="N", help="Longest answer, in tokens of text. [64]")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    keys: Annotated[
        str | None, text_option("--keys", metavar="FOLDER", help="Keys made by `keys`; only their holders may connect.")
    ] = None,
    plain_tcp: Annotated[
        bool, typer.Option("--plain-tcp", help="Allow TCP without keys beyond this machine: anybody may connect.")
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
    given = dict(zip(KEYS, (model, encode, max_tokens, device, dtype, keys), strict=True))
    layers += [option_layer(option, KEYS[option], text) for option, text in given.items() if text is not None]
    if plain_tcp:
        layers.append(Layer("--plain-tcp", {"network.plain_tcp": True}))
    made = build_config(layers)

    from stream.serving import serve_answers as serve
    from stream.speaker import model_name
    from stream.transport.curve import server_curve

    name = model_name(made)
    guarded = "for holders of a key" if server_curve(made.network, endpoint) else "without keys"
    logs.say(f"loading {name}")
    serve(made, endpoint, lambda: logs.say(f"{name} answers at {endpoint}, {guarded}; Ctrl-C ends"))
    return INTERRUPTED
