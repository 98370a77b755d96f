"""CURVE keys of endpoints, and binding of an endpoint with clear error messages.

ZeroMQ's CURVE (RFC 26, https://rfc.zeromq.org/spec/26/) encrypts, and authenticates both ends. The end that binds
holds `server.key_secret` and a folder `clients/` of public keys that may connect; the end that connects holds
`client.key_secret` and `server.key`. `make_keys` makes both halves.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85

from stream.config import PORT_MAX, NetworkConfig, check_reachable, needs_keys
from stream.errors import ConfigError, OutputError

BACKLOG = 1_024
"""Backlog of connections: with a short one, the system delays further connections for seconds."""

REASONS = {
    errno.EADDRINUSE: "another program uses it; stop that one, or name another port or path",
    errno.EACCES: "this user may not; name a port above 1023, or another path",
    errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 always works",
    errno.ENODEV: "this machine has no such address; 127.0.0.1 always works",
    errno.ENOENT: "there is no such folder; make it first",
    errno.ENAMETOOLONG: "the path is too long for a socket; name a shorter one",
}


@dataclass(frozen=True, slots=True)
class BoundPath:
    """File of an ipc socket that this process bound; ZeroMQ leaves it when the socket is closed."""

    path: str
    device: int
    inode: int

    @classmethod
    def at(cls, path: str) -> BoundPath | None:
        """Return the file at a path; None if it is gone."""
        try:
            entry = os.lstat(path)
        except OSError:
            return None
        return cls(path, entry.st_dev, entry.st_ino)

    def remove(self) -> None:
        """Remove the file, unless another file has taken its place."""
        with suppress(OSError):
            entry = os.lstat(self.path)
            if (entry.st_dev, entry.st_ino) == (self.device, self.inode):
                os.unlink(self.path)


def bind_endpoint(bound: zmq.Socket[bytes], endpoint: str) -> BoundPath | None:
    """Bind `endpoint`; return the file of an ipc socket, to be removed once the socket is closed.

    Raises OutputError if the endpoint cannot be bound, or another program uses its path.
    """
    scheme, _, path = endpoint.partition("://")
    is_file = scheme == "ipc" and not path.startswith("@")
    if is_file:
        check_socket_file(endpoint, path)  # ZeroMQ would remove whatever lies there
    port = endpoint.rpartition(":")[2]
    if scheme == "tcp" and port.isdigit() and int(port) > PORT_MAX:
        raise OutputError(f"cannot open {endpoint}: ports end at {PORT_MAX}")
    bound.setsockopt(zmq.HANDSHAKE_IVL, 5_000)  # time limit of a connection's handshake, in ms
    bound.setsockopt(zmq.BACKLOG, BACKLOG)
    try:
        bound.bind(endpoint)
    except zmq.ZMQError as error:
        reason = REASONS.get(error.errno or 0, str(error.strerror))
        raise OutputError(f"cannot open {endpoint}: {reason}") from error
    if not is_file:
        return None
    return BoundPath.at(bound.getsockopt_string(zmq.LAST_ENDPOINT).partition("://")[2])  # ZeroMQ replaces *


def check_socket_file(endpoint: str, path: str) -> None:
    """Raise OutputError for a file or a socket in use, in the place of a socket that is to be bound."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise OutputError(f"cannot open {endpoint}: there is something else at that path; name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass
    raise OutputError(f"cannot open {endpoint}: {REASONS[errno.EADDRINUSE]}")


SECRET_MODE = 0o600
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class ServerCurve:
    """Keys of the end that binds: its key pair, and the public keys that may connect."""

    secret: bytes = field(repr=False)
    public: bytes
    clients: frozenset[bytes]

    def apply(self, bound: zmq.Socket[bytes]) -> None:
        """Configure a socket, before it binds, to accept known keys only; needs `Transport.require_curve`."""
        bound.curve_secretkey = self.secret
        bound.curve_publickey = self.public
        bound.curve_server = True


@dataclass(frozen=True, slots=True)
class ClientCurve:
    """Keys of the end that connects: its key pair, and the server's public key."""

    secret: bytes = field(repr=False)
    public: bytes
    server: bytes

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Configure a socket, before it connects, for authentication of both ends."""
        socket.curve_secretkey = self.secret
        socket.curve_publickey = self.public
        socket.curve_serverkey = self.server


def new_curves() -> tuple[ServerCurve, ClientCurve]:
    """Return new keys for the end that binds and for the ends that connect."""
    (server, server_secret), (client, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    return ServerCurve(server_secret, server, frozenset({client})), ClientCurve(client_secret, client, server)


def make_keys(folder: Path) -> list[Path]:
    """Make a key pair for the end that binds and one for the ends that connect; return the two folders.

    `folder/server` is for the machine that binds, `folder/client` for those that connect. Raises ConfigError if a
    folder exists or cannot be written.
    """
    halves = [folder / "server", folder / "client"]
    for half in halves:
        if half.exists():
            raise ConfigError(f"{half} exists already; keys are never overwritten: name another folder, or remove it")
    try:
        for half in (*halves, halves[0] / "clients"):
            half.mkdir(parents=True, mode=0o700)
        _write_pair(halves[0], "server")
        _write_pair(halves[1], "client")
        (halves[1] / "server.key").write_bytes((halves[0] / "server.key").read_bytes())
        (halves[0] / "clients" / "client.key").write_bytes((halves[1] / "client.key").read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot make keys in {folder}: {error.strerror}; name a folder that can be written"
        ) from error
    return halves


def server_curve(network: NetworkConfig, endpoint: str) -> ServerCurve | None:
    """Return the keys to bind `endpoint`; None if it needs none. Raises ConfigError if required keys are missing."""
    if not needs_keys(network, endpoint):
        return None
    folder = _half(network, "server")
    public, secret = _pair(folder / "server.key_secret")
    clients = folder / "clients"
    try:
        client_keys = zmq.auth.load_certificates(clients)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read who may connect: {error}; {clients} holds public keys, as `keys` makes them"
        ) from error
    return ServerCurve(secret, public, frozenset(client_keys))


def client_curve(network: NetworkConfig, endpoint: str) -> ClientCurve | None:
    """Return the keys to connect to `endpoint`; None if it needs none.

    Raises ConfigError if required keys are missing, and for an invalid port.
    """
    guarded = needs_keys(network, endpoint)
    check_reachable(endpoint)
    if not guarded:
        return None
    folder = _half(network, "client")
    public, secret = _pair(folder / "client.key_secret")
    server, _ = _load_key(folder / "server.key")
    return ClientCurve(secret, public, server)


def _half(network: NetworkConfig, name: str) -> Path:
    assert network.keys is not None
    folder = Path(os.path.expanduser(network.keys))
    for candidate in (folder, folder / name):
        if (candidate / f"{name}.key_secret").exists():
            return candidate
    raise ConfigError(f"{folder} holds no {name}.key_secret; make keys with `keys FOLDER` and copy FOLDER/{name} there")


def _pair(path: Path) -> tuple[bytes, bytes]:
    public, secret = _load_key(path)
    if secret is None:
        raise ConfigError(f"{path} holds no secret key; copy the one that `keys` made")
    return public, secret


def _load_key(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the key {path}: {error}") from error
    if not all(_is_valid_key(key) for key in (public, secret) if key is not None):
        raise ConfigError(f"the key {path} is damaged; copy the one that `keys` made")
    return public, secret


def _is_valid_key(key: bytes) -> bool:
    """Return True for a valid key in Z85; ZeroMQ refuses others."""
    try:
        return len(z85.decode(key)) == KEY_BYTES
    except (KeyError, ValueError, struct.error):
        return False


def _write_pair(folder: Path, name: str) -> None:
    zmq.auth.create_certificates(folder, name)
    (folder / f"{name}.key_secret").chmod(SECRET_MODE)
