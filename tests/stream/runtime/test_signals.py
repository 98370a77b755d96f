"""A terminal that is closed ends a run as well as Ctrl-C does: with its summary, and outputs that are whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import av
import pytest

from stream.control import leave_gone_terminal
from tests.support.network import until
from tests.support.terminal import Pty

LIMIT_S = 120


@pytest.mark.parametrize("command", ["caption", pytest.param("watch", marks=pytest.mark.slow)])
def test_a_closed_terminal_ends_the_run_with_a_summary_and_a_whole_video(command: str, tmp_path: Path) -> None:
    log_path, video = tmp_path / "a.jsonl", tmp_path / "a.mp4"
    arguments = [command, "scene:demo", "--realtime", "--every", "0.3", "-o", str(log_path), "--heatmap", str(video)]
    pty = Pty(100, 30)
    with pty.start("-m", "tests.support.fake_command", "-1", *arguments) as child:
        pty.until(lambda: log_path.exists() and '"type":"answer"' in log_path.read_text("utf-8"), limit_s=LIMIT_S)
        pty.until(lambda: video.exists() and video.stat().st_size > 0, limit_s=LIMIT_S)
        pty.close()
        until(lambda: child.poll() is not None, limit_s=LIMIT_S)
    lines = [json.loads(line) for line in log_path.read_text("utf-8").splitlines()]
    assert (lines[-1]["type"], lines[-1]["ended"]) == ("summary", "interrupted")
    assert child.returncode == 130
    with av.open(str(video)) as container:
        assert sum(1 for _ in container.decode(video=0)) > 0


def test_only_a_terminal_that_is_gone_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    assert not leave_gone_terminal()
    pty = Pty()
    stdout = os.dup(1)
    try:
        os.dup2(pty.program, 1)
        assert not leave_gone_terminal()
        pty.close()
        assert leave_gone_terminal()
        os.write(1, b"into nowhere")
        assert not leave_gone_terminal()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    os.write(1, b"shown")
    assert capfd.readouterr().out == "shown"
