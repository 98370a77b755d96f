"""CURVE keys: made once, checked when read, and required for every socket that other machines reach."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.config import NetworkConfig, is_local
from stream.errors import ConfigError
from stream.transport.security import ClientCurve, ServerCurve, client_curve, make_keys, server_curve

FAR = "tcp://10.0.0.2:5555"
NEAR = "tcp://127.0.0.1:5555"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def with_keys(folder: Path) -> NetworkConfig:
    return NetworkConfig(keys=str(folder))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keys_are_made_in_two_halves_that_know_each_other(keys: Path) -> None:
    assert set(files(keys)) == {
        "server/server.key",
        "server/server.key_secret",
        "server/clients/client.key",
        "client/client.key",
        "client/client.key_secret",
        "client/server.key",
    }
    server = server_curve(with_keys(keys), FAR)
    client = client_curve(with_keys(keys), FAR)
    assert server is not None
    assert client is not None
    assert client.server == server.public
    assert server.clients == {client.public}
    assert client.secret.decode() not in repr(client)
    assert server.secret.decode() not in repr(server)
    assert len({server.public, server.secret, client.public, client.secret}) == 4


def test_secrets_are_for_their_owner_only(keys: Path) -> None:
    for path in (keys / "server" / "server.key_secret", keys / "client" / "client.key_secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (keys / "server", keys / "client", keys / "server" / "clients"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert b"secret-key" not in (keys / "server" / "clients" / "client.key").read_bytes()
    assert b"secret-key" not in (keys / "client" / "server.key").read_bytes()


@pytest.mark.parametrize("half", ["server", "client"])
def test_keys_are_never_overwritten(tmp_path: Path, half: str) -> None:
    make_keys(tmp_path)
    (tmp_path / ("client" if half == "server" else "server")).rename(tmp_path / "elsewhere")
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=f"{half} exists already; keys are never overwritten"):
        make_keys(tmp_path)
    assert files(tmp_path) == before


def test_if_nothing_can_be_written_no_keys_are_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot make keys in .*file: Not a directory"):
        make_keys(tmp_path / "file")


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("ipc:///tmp/answer", True),
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.3.2.1:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://localhost:5555", True),
        ("tcp://lo:5555", True),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://*:5555", False),
        ("tcp://eth0:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://10.0.0.2:5555", False),
        ("tcp://localhost.example.org:5555", False),
        ("tcp://127.0.0.1.example.org:5555", False),
    ],
)
def test_addresses_of_this_machine(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) == local
    if local:
        assert server_curve(NetworkConfig(), endpoint) is None
        assert client_curve(NetworkConfig(), endpoint) is None
    for curve in (server_curve, client_curve):
        assert curve(NetworkConfig(plain_tcp=True), endpoint) is None
        if not local:
            with pytest.raises(ConfigError, match="leaves this machine without keys: make some with `keys FOLDER`"):
                curve(NetworkConfig(), endpoint)


def test_a_socket_that_no_other_program_could_reach_is_refused() -> None:
    for curve in (server_curve, client_curve):
        with pytest.raises(ConfigError, match="'inproc://x' works inside one process only; write tcp://"):
            curve(NetworkConfig(), "inproc://x")


def test_clients_whose_keys_cannot_be_read_are_not_locked_out_in_silence(keys: Path) -> None:
    clients = keys / "server" / "clients"
    (clients / "torn.key").write_text("garbage")
    with pytest.raises(ConfigError, match=r"cannot read who may connect: .*torn.key; .*clients holds public keys"):
        server_curve(with_keys(keys), FAR)
    clients.rename(keys / "elsewhere")
    with pytest.raises(ConfigError, match="cannot read who may connect"):
        server_curve(with_keys(keys), FAR)


@pytest.mark.parametrize("endpoint", [NEAR, FAR, "tcp://*:*"])
def test_keys_that_are_given_are_used_on_loopback_too(keys: Path, endpoint: str) -> None:
    assert isinstance(server_curve(with_keys(keys), endpoint), ServerCurve)
    assert isinstance(client_curve(with_keys(keys), endpoint), ClientCurve)
    for curve in (server_curve, client_curve):
        assert curve(with_keys(keys), "ipc:///tmp/answer") is None, "sockets that are no TCP need none"


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "5555",
        "10.0.0.2:5555",
        "udp://10.0.0.2:5555",
        "http://10.0.0.2:5555",
        "tcp:/10.0.0.2:5555",
        "tcp://10.0.0.2",
        "tcp://10.0.0.2:",
        "tcp://10.0.0.2:http",
        "tcp://:5555",
        "ipc://",
    ],
)
def test_invalid_addresses_are_refused(endpoint: str) -> None:
    for curve in (server_curve, client_curve):
        with pytest.raises(ConfigError, match="is not a socket address; write tcp://HOST:PORT or ipc://PATH"):
            curve(NetworkConfig(plain_tcp=True), endpoint)


@pytest.mark.parametrize("port", ["0", "65536", "99999999999"])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a valid address: a port is a number from 1 to 65535"):
        client_curve(NetworkConfig(plain_tcp=True), f"tcp://10.0.0.2:{port}")


def test_a_half_may_be_named_itself_or_its_parent(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_curve(with_keys(keys), FAR) == server_curve(with_keys(keys / "server"), FAR)
    assert client_curve(with_keys(keys), FAR) == client_curve(with_keys(keys / "client"), FAR)
    monkeypatch.setenv("HOME", str(keys.parent))
    assert client_curve(NetworkConfig(keys="~/keys"), FAR) == client_curve(with_keys(keys), FAR)


def test_the_other_half_is_of_no_use(keys: Path) -> None:
    with pytest.raises(ConfigError, match=r"client holds no server\.key_secret; make keys with `keys FOLDER` and copy"):
        server_curve(with_keys(keys / "client"), FAR)
    with pytest.raises(ConfigError, match=r"server holds no client\.key_secret"):
        client_curve(with_keys(keys / "server"), FAR)
    with pytest.raises(ConfigError, match=r"nowhere holds no client\.key_secret"):
        client_curve(with_keys(keys / "nowhere"), FAR)


def test_a_secret_file_without_a_secret_is_refused(keys: Path) -> None:
    secret = keys / "client" / "client.key_secret"
    secret.write_bytes((keys / "client" / "client.key").read_bytes())
    with pytest.raises(ConfigError, match=r"client\.key_secret holds no secret key; copy the one that `keys` made"):
        client_curve(with_keys(keys), FAR)


@pytest.mark.parametrize(
    ("path", "content", "curve"),
    [
        ("server/server.key_secret", b"nonsense", server_curve),
        ("client/server.key", None, client_curve),
        ("client/server.key", b"\xff\x00" * 50, client_curve),
    ],
)
def test_a_key_that_is_none_or_not_there_is_refused(
    keys: Path, path: str, content: bytes | None, curve: Callable[[NetworkConfig, str], object]
) -> None:
    (keys / path).unlink()
    if content is not None:
        (keys / path).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"cannot read the key .*{path}"):
        curve(with_keys(keys), FAR)


@pytest.mark.parametrize("key", ["short", "x" * 41, "x" * 35, "~" * 40, "#" * 40, "é" * 20, ""])
def test_a_damaged_key_is_refused_before_a_socket_is_made(keys: Path, key: str) -> None:
    (keys / "client" / "server.key").write_text(f'curve\n    public-key = "{key}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the key .*client/server\.key is damaged; copy the one that `keys` made"):
        client_curve(with_keys(keys), FAR)


def test_a_damaged_secret_is_refused(keys: Path) -> None:
    path = keys / "server" / "server.key_secret"
    path.write_text(path.read_text(encoding="utf-8").replace("secret-key = ", "secret-key = x"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"server\.key_secret is damaged"):
        server_curve(with_keys(keys), FAR)
