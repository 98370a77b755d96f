"""Frame processes, started one after another, and a spare one that waits with everything imported."""

from __future__ import annotations

import msgspec

from stream.answers import LocalAnswers
from stream.child import Child
from stream.reports import Orders, Told
from stream.succession import Succession
from stream.transport import SocketDirectory


class FrameChildren:
    """Makes a run's frame processes. They report to the address `reports`; `answers` None: those are elsewhere.

    `directory` is the run's own, which a child removes where its parent cannot.
    """

    def __init__(
        self,
        succession: Succession,
        answers: LocalAnswers | None,
        speaker: str,
        reports: str,
        directory: SocketDirectory,
    ) -> None:
        self._succession = succession
        self._answers = answers
        self._speaker = speaker
        self._reports = reports
        self._directory = directory
        self._spare: Child | None = None

    def start(self) -> Child:
        """A frame process at work: the spare one where there is one, else a new one."""
        if self._spare is not None and self._spare.death() is not None:
            self._spare.stop()
            self._spare = None
        child, self._spare = self._spare or self._new(), None
        config = self._succession.next()
        orders = Orders(
            reports=self._reports,
            answers="" if self._answers is None else self._answers.endpoint,
            snapshot=-1 if self._answers is None else self._answers.snapshot.descriptor,
            pulse=child.pulse_writer,
            directory=self._directory,
            speaker=self._speaker,
            config=config.model_dump_json(),
            holds=self._succession.holds,
        )
        child.tell(msgspec.json.encode(orders))
        if self._succession.asked is not None:
            child.tell(msgspec.json.encode(Told(ask=self._succession.asked)))
        return child

    def keep_spare(self) -> None:
        """Starts the next frame process, up to its orders, where none waits; for when there is time."""
        if self._spare is None:
            self._spare = self._new()

    def stop_spare(self) -> None:
        """Ends the one that waits: it holds nothing, and may still be importing."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.stop()

    def _new(self) -> Child:
        inherited = () if self._answers is None else (self._answers.snapshot.descriptor,)
        return Child("frame", "stream.frame_process", inherited, {"OMP_NUM_THREADS": "1"})
