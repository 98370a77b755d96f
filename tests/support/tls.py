"""Self-made certificates, and TLS in front of servers that have none."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.network import LIMIT_S


def make_certificate(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[str, str]:
    """A certificate of this machine's own names, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return str(certificate), str(key)


@contextmanager
def behind_tls(port: int, certificate: str, key: str) -> Iterator[int]:
    """The port at which a server of this machine is reached over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=pass_on, args=(client,), daemon=True))
                threads[-1].start()

    def pass_on(client: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(client, server_side=True) as inner,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            while True:
                for source in [inner] if inner.pending() else select.select([inner, server], [], [], LIMIT_S)[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    (server if source is inner else inner).sendall(data)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(LIMIT_S)
        listener.close()
