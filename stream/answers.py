"""Where a run's answers come from: a process of its own, a thread, or an answer stage elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from stream.answer_process import start_answer_process
from stream.clock import Clock
from stream.config import Config
from stream.keeper import Keeper, RestartRules
from stream.snapshot import SnapshotWriter
from stream.stages.allocate import AnswerReach
from stream.transport import ipc_endpoint, private_directory
from stream.transport.curve import client_curve

ANSWERS = "answers"
"""What the answer process is called in events and metrics."""


def restart_rules(config: Config, *, restart: bool) -> RestartRules:
    """What `pipeline` says of restarts."""
    pipeline = config.pipeline
    return RestartRules(restart=restart, limit=pipeline.restart_limit, heartbeat_s=pipeline.heartbeat_s)


@contextmanager
def local_answers(config: Config, speaker: str, clock: Clock, *, restart: bool) -> Iterator[tuple[AnswerReach, Keeper]]:
    """A process of this run's own, and how it is reached. Stopping the keeper is the caller's."""
    with private_directory() as directory, closing(SnapshotWriter()) as snapshot:
        endpoint = ipc_endpoint(directory)
        keeper = Keeper(
            ANSWERS,
            lambda: start_answer_process(config, speaker, endpoint, directory, snapshot.descriptor),
            restart_rules(config, restart=restart),
            clock,
        )
        limit_s = config.pipeline.timeout_s
        yield AnswerReach(endpoint, snapshot=snapshot, hung=lambda: keeper.child.kill(hung_s=limit_s)), keeper


def remote_answers(config: Config) -> AnswerReach:
    """The answer stage that `answer.server` names. Raises ConfigError where its address or the keys are no good."""
    assert config.answer.server is not None
    curve = client_curve(config.network, config.answer.server)
    return AnswerReach(config.answer.server, curve=curve, supervised=False)
