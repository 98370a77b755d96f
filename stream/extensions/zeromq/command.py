"""Command `ask`: another question for a run, over its control socket."""

from __future__ import annotations

from typing import Annotated

import typer

from stream.commands.options import GivenOptions, takes_options
from stream.commands.outcome import report_error
from stream.errors import TransportError

ASKED = 0
REFUSED = 2


@takes_options
def ask(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Endpoint of the run, as given to --control.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The new question.", show_default=False)],
    *,
    options: GivenOptions,
) -> int:
    """Change the question of a run in progress.

    Nothing is restarted; the next answer is about the new question.
    """
    from stream.config_loading import ConfigLayer

    network = options.configuration([ConfigLayer("ask", {"answer.query": question})]).network

    from stream.extensions.zeromq.services import request
    from stream.extensions.zeromq.sinks import ask_request, read_reply
    from stream.transport.security import client_curve

    try:
        reply = read_reply(request(endpoint, client_curve(network, endpoint), ask_request(question)))
    except TransportError as error:
        report_error(str(error))
        return REFUSED
    if reply.error is not None:
        report_error(f"the run at {endpoint} refuses: {reply.error}")
    return ASKED if reply.ok else REFUSED
