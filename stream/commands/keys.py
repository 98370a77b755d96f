"""`keys`: the CURVE keys that let sockets leave this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to make them; nothing is overwritten.")],
) -> int:
    """Make the keys that let TCP sockets leave this machine.

    They prove the two ends of a connection to each other, and encrypt it.
    """
    from stream.logs import print_line
    from stream.transport.curve import make_keys

    server, client = make_keys(Path(folder).expanduser())
    print_line(f"{server}: for the machine that listens (serve-answers, --publish, --control); keep it secret")
    print_line(f"{client}: for the machines that connect; copy it there by a safe way, and give --keys")
    print_line(f"More clients: put the public key of each into {server / 'clients'}, while nothing runs.")
    return 0
