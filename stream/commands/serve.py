"""Commands for runs on several hosts: `serve-answers`, `ask` and `keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream import logs
from stream.commands.options import (
    Allocator,
    Api,
    Assignments,
    ConfigFiles,
    ConfigKey,
    Device,
    Dtype,
    Encode,
    Model,
    layers_from_options,
    text_option,
)
from stream.commands.outcome import INTERRUPTED, report_error
from stream.errors import ConfigError, TransportError

ASKED, REFUSED = 0, 2


def ask(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Endpoint of the run, as given to --control.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The new question.", show_default=False)],
    keys: Annotated[
        str | None,
        text_option("--keys", metavar="FOLDER", help="CURVE keys of the run, made by `keys`."),
        ConfigKey("network.keys"),
    ] = None,
    plain_tcp: Annotated[
        bool,
        typer.Option("--plain-tcp", help="Allow TCP to other machines without keys."),
        ConfigKey("network.plain_tcp"),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Change the question of a run in progress.

    Nothing is restarted; the next answer is about the new question.
    """
    from stream.config_loading import ConfigLayer, build_config

    layers = layers_from_options(ask, keys=keys, plain_tcp=plain_tcp)
    network = build_config([ConfigLayer("ask", {"answer.query": question}), *layers]).network

    from stream.sinks.services import ask_request, read_reply
    from stream.transport.security import client_curve
    from stream.transport.services import request

    try:
        reply = read_reply(request(endpoint, client_curve(network, endpoint), ask_request(question)))
    except TransportError as error:
        report_error(str(error))
        return REFUSED
    if reply.error is not None:
        report_error(f"the run at {endpoint} refuses: {reply.error}")
    return ASKED if reply.ok else REFUSED


def keys(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder for the new keys; nothing is overwritten.")],
) -> int:
    """Make the keys that let TCP sockets leave this machine.

    They prove the two ends of a connection to each other, and encrypt it.
    """
    from stream.logs import print_line
    from stream.transport.security import make_keys

    server, client = make_keys(Path(folder).expanduser())
    print_line(f"{server}: for the machine that listens (serve-answers, --publish, --control); keep it secret")
    print_line(f"{client}: for the machines that connect; copy it there over a secure channel, and give --keys")
    print_line(f"More clients: put the public key of each into {server / 'clients'}, while the server is stopped.")
    return 0


def serve_answers(
    endpoint: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Address to listen on, such as tcp://0.0.0.0:5555.")
    ],
    model: Model = None,
    api: Api = None,
    allocator: Allocator = None,
    encode: Encode = None,
    max_tokens: Annotated[
        str | None,
        text_option("--max-tokens", metavar="N", help="Maximum length of an answer, in text tokens. [64]"),
        ConfigKey("answer.max_tokens"),
    ] = None,
    slots: Annotated[
        str | None,
        text_option("--slots", metavar="N", help="Clients answered at once, in one batch. [1]"),
        ConfigKey("answer.slots"),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    keys: Annotated[
        str | None,
        text_option("--keys", metavar="FOLDER", help="Keys made by `keys`; only their holders may connect."),
        ConfigKey("network.keys"),
    ] = None,
    plain_tcp: Annotated[
        bool,
        typer.Option("--plain-tcp", help="Allow TCP from other machines without keys: anybody may connect."),
        ConfigKey("network.plain_tcp"),
    ] = False,
    metrics_port: Annotated[
        str | None,
        text_option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics and health on 127.0.0.1."),
        ConfigKey("output.metrics_port"),
    ] = None,
    config: ConfigFiles = None,
    set_: Assignments = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Serve the model to runs on this machine or others.

    They are given this address with --server. Ctrl-C ends it; SIGTERM lets
    the answers under way end first.
    """
    from stream.config_loading import PICTURE, build_config, layer_from_assignment, layer_from_file

    layers = [layer_from_file(name) for name in config or ()]
    layers += [layer_from_assignment(assignment) for assignment in set_ or ()]
    options = {
        "model": model,
        "allocator": allocator,
        "encode": encode,
        "max_tokens": max_tokens,
        "slots": slots,
        "api": api,
    }
    network = {"keys": keys, "plain_tcp": plain_tcp, "metrics_port": metrics_port}
    layers += layers_from_options(serve_answers, **options, device=device, dtype=dtype, **network)
    made = build_config(layers)
    if made.answer.encode == PICTURE and made.answer.api.url is None:
        raise ConfigError("answer.encode = picture needs a server with an API; give --api URL")

    from stream.answer.model import model_name
    from stream.runtime.answer_worker import serve_answers as serve
    from stream.transport.security import server_curve

    name = model_name(made)
    guarded = "for holders of a key" if server_curve(made.network, endpoint) else "without keys"
    logs.say(f"loading {name}")
    drained = serve(made, endpoint, lambda: logs.say(f"{name} answers at {endpoint}, {guarded}; Ctrl-C ends"))
    if drained:
        logs.say("drained: no answer is under way")
    return 0 if drained else INTERRUPTED
