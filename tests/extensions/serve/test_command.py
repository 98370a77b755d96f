"""`serve-answers` answers runs elsewhere, and `keys` makes the keys for it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stream.cli import main
from stream.config import Config
from tests.stream.test_cli import error_of
from tests.support.network import LIMIT_S, free_port, until

ROOT = Path(__file__).resolve().parents[3]
LONG_S = 240.0
QUERIES = ["Say what happens.", "What colour is the square?"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "run_stream.py"), *arguments]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


@contextmanager
def answering(endpoint: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command, from its ready line until Ctrl-C ends it with status 130, as in shells."""
    served = start("serve-answers", endpoint, *options)
    assert served.stderr is not None
    try:
        assert served.stderr.readline() == "loading scenes-tiny\n"
        guarded = "for holders of a key" if "--keys" in options else "without keys"
        assert served.stderr.readline() == f"scenes-tiny answers at {endpoint}, {guarded}; Ctrl-C ends\n"
        yield served
        served.send_signal(signal.SIGINT)
        assert served.wait(LIMIT_S) == 130
        assert served.stderr.read() == ""
    finally:
        served.kill()
        served.communicate()


def test_several_files_are_merged_and_the_last_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_file, second_file = tmp_path / "one.toml", tmp_path / "two.toml"
    first_file.write_text("[answer]\nmax_tokens = 7\nseed = 3\n", encoding="utf-8")
    second_file.write_text("[answer]\nmax_tokens = 9\n", encoding="utf-8")
    served: list[Config] = []
    monkeypatch.setattr(
        "stream.runtime.answer_worker.serve_answers", lambda config, endpoint, ready: served.append(config)
    )
    assert main(["serve-answers", "tcp://127.0.0.1:5555", "-c", str(first_file), "-c", str(second_file)]) == 130
    assert (served[0].answer.max_tokens, served[0].answer.seed) == (9, 3)


def test_keys_are_made_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert main(["keys", str(folder)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0].startswith(f"{folder}/server: for the machine that listens")
    assert lines[1].startswith(f"{folder}/client: for the machines that connect")
    assert lines[2].startswith("More clients: put the public key of each into ")
    assert "SECRET" not in output.out.upper().replace("KEEP IT SECRET", "")
    for secret in (folder / "server" / "server.key_secret", folder / "client" / "client.key_secret"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for half in ("server", "client"):
        assert stat.S_IMODE((folder / half).stat().st_mode) == 0o700


def test_keys_that_are_there_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path)]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, error = error_of(capsys, "keys", str(tmp_path))
    assert status == 2
    assert "keys are never overwritten: name another folder, or remove it" in error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://192.0.2.7:5555"])
def test_beyond_this_machine_keys_are_asked_for(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "serve-answers", endpoint)
    assert status == 2
    assert error == (
        f"error: {endpoint} leaves this machine without keys: make some with `keys FOLDER` and give --keys FOLDER, or "
        "allow connections without keys by --plain-tcp"
    )


@pytest.mark.parametrize("endpoint", ["localhost:5555", "tcp://127.0.0.1", "http://127.0.0.1:80", "tcp://127.0.0.1:x"])
def test_an_address_that_is_none_is_refused(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "serve-answers", endpoint) == (
        2,
        f"error: {endpoint!r} is not a socket address; write tcp://HOST:PORT or ipc://PATH",
    )


def test_keys_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "serve-answers", "tcp://127.0.0.1:5555", "--keys", str(tmp_path))
    assert status == 2
    assert "holds no server.key_secret; make keys with `keys FOLDER`" in error


def test_a_missing_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "serve-answers", "tcp://127.0.0.1:5555", "-m", str(tmp_path / "nothing"))
    assert status == 2
    assert "nothing" in error


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        status, error = error_of(capsys, "serve-answers", endpoint)
    assert status == 2
    assert error.startswith(f"error: cannot open {endpoint}: ")
    assert "another" in error


def caption(folder: Path, endpoint: str, name: str, number: int) -> subprocess.Popen[str]:
    outputs = ["-o", str(folder / f"{name}{number}.jsonl"), "-o", str(folder / f"{name}{number}.vtt")]
    options = ["--max-frames", "60", "--no-timing", "-q", QUERIES[number], "--server", endpoint]
    return start("caption", "scene:demo", *options, *outputs)


def finish(run: subprocess.Popen[str]) -> tuple[int, str]:
    err = run.communicate(timeout=LONG_S)[1]
    return run.returncode, err


@pytest.mark.slow
def test_two_runs_at_once_write_what_each_writes_alone(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with answering(endpoint):
        runs = [caption(tmp_path, endpoint, "together", number) for number in range(2)]
        parallel_results = [finish(run) for run in runs]
        serial_results = [finish(caption(tmp_path, endpoint, "alone", number)) for number in range(2)]
    assert [status for status, _ in (*parallel_results, *serial_results)] == [0] * 4
    for number in range(len(QUERIES)):
        for suffix in ("jsonl", "vtt"):
            contents = [(tmp_path / f"{name}{number}.{suffix}").read_bytes() for name in ("together", "alone")]
            assert contents[0] == contents[1]
            assert len(contents[0]) > 40


@pytest.mark.slow
def test_with_keys_only_their_holders_are_answered(tmp_path: Path) -> None:
    server_keys, foreign_keys, endpoint = tmp_path / "ours", tmp_path / "others", f"tcp://127.0.0.1:{free_port()}"
    for folder in (server_keys, foreign_keys):
        assert main(["keys", str(folder)]) == 0
    with answering(endpoint, "--keys", str(server_keys / "server")):
        options = ["caption", "scene:demo", "--max-frames", "5", "--server", endpoint]
        status, err = finish(
            start(*options, "-o", str(tmp_path / "a.vtt"), "--set", f"network.keys={server_keys / 'client'}")
        )
        assert status == 0, err
        for wrong in (["--set", f"network.keys={foreign_keys / 'client'}"], []):
            status, err = finish(start(*options, *wrong))
            assert status == 2
            lines = [line for line in err.splitlines() if line.startswith("error: ")]
            assert len(lines) == 1
            assert "Traceback" not in err


@pytest.mark.slow
def test_a_run_whose_answer_stage_is_gone_fails_with_one_line(tmp_path: Path) -> None:
    endpoint, output = f"tcp://127.0.0.1:{free_port()}", tmp_path / "a.vtt"
    with answering(endpoint):
        run = start("caption", "scene:demo", "--every", "0.2", "--server", endpoint, "-o", str(output))
        until(lambda: output.exists() and output.stat().st_size > 60)
    status, err = finish(run)
    assert status == 1
    assert "the connection to it was lost; is `serve-answers` still running there?" in err
