"""A real RTMP server: nginx with its RTMP module."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.network import LIMIT_S, free_port, until

PROGRAM = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MODULE = Path("/usr/lib/nginx/modules/ngx_rtmp_module.so")

CONFIGURATION = """
load_module {module};
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 32; }}
rtmp {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        application live {{ live on; idle_streams off; drop_idle_publisher 10s; }}
    }}
}}
"""


@contextmanager
def rtmp_server(folder: Path) -> Iterator[str]:
    """The address of an application that takes streams and gives them out, under any name."""
    if PROGRAM is None or not MODULE.exists():
        message = "no RTMP server: apt-get install --no-install-recommends nginx libnginx-mod-rtmp"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(module=MODULE, folder=folder, port=port), encoding="utf-8")
    command = [PROGRAM, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def listens() -> bool:
            assert process.poll() is None, "nginx ended at once"
            with socket.socket() as probe:
                probe.settimeout(LIMIT_S)
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(listens)
        yield f"rtmp://127.0.0.1:{port}/live"
    finally:
        process.kill()
        process.wait(LIMIT_S)
