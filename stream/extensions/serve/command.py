"""Commands for runs on several hosts: `serve-answers` and `keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream import logs
from stream.commands.options import GivenOptions, takes_options
from stream.commands.outcome import INTERRUPTED
from stream.errors import ConfigError


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


@takes_options
def serve_answers(
    endpoint: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Address to listen on, such as tcp://0.0.0.0:5555.")
    ],
    *,
    options: GivenOptions,
) -> int:
    """Serve the model to runs on this machine or others.

    They are given this address with --server. Ctrl-C ends it; SIGTERM lets
    the answers under way end first.
    """
    from stream.config_loading import PICTURE

    config = options.configuration()
    if config.answer.encode == PICTURE and config.model_key is None:
        raise ConfigError("answer.encode = picture needs a server with an API; give --api URL")

    from stream.answer.loading import model_name
    from stream.runtime.answer_worker import serve_answers as serve
    from stream.transport.security import server_curve

    name = model_name(config)
    if server_curve(config.network, endpoint):
        access = "for holders of a key"
    else:
        access = "without keys"
    logs.say(f"loading {name}")
    is_drained = serve(config, endpoint, lambda: logs.say(f"{name} answers at {endpoint}, {access}; Ctrl-C ends"))
    if is_drained:
        logs.say("drained: no answer is under way")
    return 0 if is_drained else INTERRUPTED
