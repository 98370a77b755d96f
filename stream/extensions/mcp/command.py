"""`mcp` command: tools for agents over the page of a run."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.extensions.mcp.page import CameraPage

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
    from stream.extensions.mcp import MCP
    from stream.http.address import LOCAL_NAMES, TOKEN, TOKEN_CHARS_MIN, is_loopback, parse_address

    MCP.require("the command mcp")
    token = os.environ.get(TOKEN) or None
    if listen is None:
        place = None
    else:
        place = parse_address(listen, "--listen", "8091 or 0.0.0.0:8091")
    if place is not None and not is_loopback(place[0]) and len(token or "") < TOKEN_CHARS_MIN:
        raise ConfigError(
            f"--listen {listen} can be reached from other machines; put a secret of {TOKEN_CHARS_MIN} characters or "
            f"more into {TOKEN}, or name a port of this machine only"
        )

    from stream import logs
    from stream.extensions.mcp.page import CameraPage
    from stream.extensions.mcp.server import make_server
    from stream.extensions.mcp.serving import PATH, serve_http
    from stream.extensions.mcp.standard_input import bounded_stdin
    from stream.http.server import open_listener

    server = make_server(CameraPage(address, token))
    # Beside the server: the agent's first message must not wait for a host that is not there.
    check = threading.Thread(target=_report_problem, args=(CameraPage(address, token),), daemon=True)
    if place is None:
        check.start()
        sys.stdin = bounded_stdin()
        server.run("stdio")
        return 0
    host, port = place
    if is_loopback(host):
        hosts = tuple(f"{name}:*" for name in (*LOCAL_NAMES, host, "[::1]"))
    else:
        hosts = ()
    access = "with a token" if token else "without a token"
    with open_listener("MCP", host, port) as listener:
        logs.say(f"MCP server at http://{host}:{port}{PATH}, {access}; Ctrl-C ends")
        check.start()
        serve_http(server, listener, host, token, allowed_hosts=hosts)
    return 0


def _report_problem(page: CameraPage) -> None:
    """Print one line if no page answers; the server goes on, for a run may start later."""
    from stream import logs

    async def problem() -> str | None:
        async with page:
            return await page.problem()

    reason = asyncio.run(problem())
    if reason is not None:
        logs.say(f"{reason}. Tools work once it answers", "warning", "no-page", reason=reason)
