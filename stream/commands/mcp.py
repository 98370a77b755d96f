"""`mcp` command: tools for agents over the page of a run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stream.errors import ConfigError

DEFAULT_ADDRESS = "http://127.0.0.1:8090"


def mcp(
    address: Annotated[
        str, typer.Argument(metavar="PAGE", help="Address of the run's page, as `watch --web` prints it.")
    ] = DEFAULT_ADDRESS,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="[HOST:]PORT",
            help="Serve streamable HTTP at /mcp instead of standard input and output.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Let agents see and ask the cameras of a run, by MCP.

    An agent starts this command itself, or reaches it over HTTP with --listen.
    ARR_COC_WEB_TOKEN is the token of the page, and of HTTP clients, who send it as a
    bearer token; beyond this machine one is needed.
    """
    from stream.options.extra import MCP
    from stream.web.access import LOCAL_NAMES, TOKEN, TOKEN_CHARS_MIN, is_loopback, parse_address

    MCP.require("the command mcp")
    token = os.environ.get(TOKEN) or None
    place = None if listen is None else parse_address(listen, "--listen", "8091 or 0.0.0.0:8091")
    if place is not None and not is_loopback(place[0]) and len(token or "") < TOKEN_CHARS_MIN:
        raise ConfigError(
            f"--listen {listen} can be reached from other machines; put a secret of {TOKEN_CHARS_MIN} characters or "
            f"more into {TOKEN}, or name a port of this machine only"
        )

    from stream import logs
    from stream.mcp.page import CameraPage
    from stream.mcp.server import make_server
    from stream.mcp.serving import PATH, serve_http

    server = make_server(CameraPage(address, token))
    if place is None:
        server.run("stdio")
        return 0
    host, port = place
    hosts = tuple(f"{name}:*" for name in (*LOCAL_NAMES, host, "[::1]")) if is_loopback(host) else ()
    access = "with a token" if token else "without a token"
    logs.say(f"MCP server at http://{host}:{port}{PATH}, {access}; Ctrl-C ends")
    serve_http(server, host, port, token, allowed_hosts=hosts)
    return 0
