"""Where a run's answers come from: a process of its own, a thread, or an answer stage elsewhere."""

from __future__ import annotations

from contextlib import ExitStack, closing

from stream.answer_process import start_answer_process
from stream.child import Child
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.conversation import AnswerReach
from stream.keeper import Keeper, RestartRules
from stream.snapshot import SnapshotWriter
from stream.speaker import QWEN
from stream.transport import ipc_endpoint, private_directory
from stream.transport.curve import client_curve

ANSWERS = "answers"
"""What the answer process is called in events and metrics."""


def restart_rules(config: Config, *, restart: bool) -> RestartRules:
    """What `pipeline` says of restarts."""
    pipeline = config.pipeline
    return RestartRules(restart=restart, limit=pipeline.restart_limit, heartbeat_s=pipeline.heartbeat_s)


class LocalAnswers:
    """A process of this run's own: its address from the beginning, the process itself from `start` on."""

    def __init__(self, config: Config, speaker: str, clock: Clock, *, restart: bool) -> None:
        self._config = config
        self._speaker = speaker
        self._clock = clock
        self._restart = restart
        self._keeper: Keeper | None = None
        with ExitStack() as stack:
            self._directory = stack.enter_context(private_directory())
            self.snapshot = stack.enter_context(closing(SnapshotWriter()))
            self.endpoint = ipc_endpoint(self._directory)
            self._stack = stack.pop_all()

    @property
    def reach(self) -> AnswerReach:
        """How the allocate stage of this process reaches it."""
        return AnswerReach(self.endpoint, snapshot=self.snapshot, hung=self.hung)

    def start(self) -> Keeper:
        """Starts the process; whoever calls this watches and stops it."""
        self._keeper = Keeper(
            ANSWERS, self._start_process, restart_rules(self._config, restart=self._restart), self._clock
        )
        return self._keeper

    def hung(self) -> None:
        """It has said nothing for too long."""
        if self._keeper is not None:
            self._keeper.child.kill(hung_s=self._config.pipeline.timeout_s)

    def close(self) -> None:
        """Gives back what the process shared; to be called when it has been stopped."""
        self._stack.close()

    def _start_process(self) -> Child:
        descriptor = self.snapshot.descriptor
        return start_answer_process(self._config, self._speaker, self.endpoint, self._directory, descriptor)


class SharedAnswers:
    """One answer process for several runs of this program, one after another: the model is loaded once.

    It is started with the first run, and again with the next one after it died.
    """

    def __init__(self, config: Config, speaker: str = QWEN) -> None:
        self._answers = LocalAnswers(config, speaker, MonotonicClock(), restart=config.pipeline.restart is True)
        self._keeper: Keeper | None = None

    @property
    def reach(self) -> AnswerReach:
        return self._answers.reach

    def keeper(self) -> Keeper:
        """The running process, to be watched by the run that needs it, and stopped by `close` only."""
        if self._keeper is not None and self._keeper.child.death() is not None:
            self._keeper.stop()
            self._keeper = None
        self._keeper = self._keeper or self._answers.start()
        return self._keeper

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self._answers.close()


def remote_answers(config: Config) -> AnswerReach:
    """The answer stage that `answer.server` names. Raises ConfigError where its address or the keys are no good."""
    assert config.answer.server is not None
    curve = client_curve(config.network, config.answer.server)
    return AnswerReach(config.answer.server, curve=curve, supervised=False)
