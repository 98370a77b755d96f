"""`ask`: another question for a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

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
        typer.Option(
            "--keys", metavar="FOLDER", help="Keys made by `keys`, where the run has some.", show_default=False
        ),
    ] = None,
    plain_tcp: Annotated[bool, typer.Option("--plain-tcp", help="Allow TCP without keys beyond this machine.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Change the question of a run that goes on.

    Nothing is restarted; the next answer is about the new question.
    """
    layers = [Layer("ask", {"answer.query": question})]
    if keys is not None:
        layers.append(Layer("--keys", {"network.keys": keys}))
    if plain_tcp:
        layers.append(Layer("--plain-tcp", {"network.plain_tcp": True}))
    network = build_config(layers).network

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
