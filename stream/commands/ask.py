"""`ask`: another question for a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from stream.commands.text_options import Key, key_layers, text_option
from stream.errors import TransportError
from stream.layers import Layer, build_config

ASKED, REFUSED = 0, 2


def ask(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="What the run was given with --control.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask from now on.", show_default=False)],
    keys: Annotated[
        str | None,
        text_option("--keys", metavar="FOLDER", help="Keys made by `keys`, where the run has some."),
        Key("network.keys"),
    ] = None,
    plain_tcp: Annotated[
        bool, typer.Option("--plain-tcp", help="Allow TCP without keys beyond this machine."), Key("network.plain_tcp")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Change the question of a run that goes on.

    Nothing is restarted; the next answer is about the new question.
    """
    layers = key_layers(ask, keys=keys, plain_tcp=plain_tcp)
    network = build_config([Layer("ask", {"answer.query": question}), *layers]).network

    from stream.commands.outcome import report_error
    from stream.requests import ask_request, read_reply
    from stream.transport.control import request
    from stream.transport.curve import client_curve

    try:
        reply = read_reply(request(endpoint, client_curve(network, endpoint), ask_request(question)))
    except TransportError as error:
        report_error(str(error))
        return REFUSED
    if reply.error is not None:
        report_error(f"the run at {endpoint} refuses: {reply.error}")
    return ASKED if reply.ok else REFUSED
