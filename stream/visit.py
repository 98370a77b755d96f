"""One stay with an answer stage, from joining it to its loss: whether it is ready, whose turn it is, its silence."""

from __future__ import annotations

from arr_coc.types import TokenPacket
from stream.clock import Clock
from stream.messages import Hello, Join, Want
from stream.packets import frame_message, token_message
from stream.patience import Patience
from stream.question import Question
from stream.transport import Link, Received


class Visit:
    """A guest's side of its stay with one answer stage. Its successor gets a visit of its own, which begins afresh.

    `hello` is the greeting, None before it; `ready`: the answer stage has its model and knows the question too.
    """

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self.hello: Hello | None = None
        self.ready = False
        self._joined = False
        self._wanting = False
        self._turn: int | None = None
        self._patience = Patience(clock)

    @property
    def has_turn(self) -> bool:
        """A turn was granted, and nothing has been sent for it."""
        return self._turn is not None

    @property
    def silence_s(self) -> float:
        """How long nothing has been heard while a turn or an answer is awaited; 0 where none is."""
        return self._patience.silence_s

    def join(self, message: Join) -> None:
        """Tells who is there, once; as soon as there is somebody to tell."""
        if not self._joined:
            self._joined = self.link.offer(message)

    def want(self) -> None:
        """Asks for a turn, once; as soon as the answer stage is ready."""
        if self.ready and not self._wanting and self._turn is None:
            self._wanting = self.link.offer(Want())

    def take_turn(self, turn: int) -> None:
        """A turn has come."""
        self._turn, self._wanting = turn, False

    def lapse(self) -> None:
        """The turn that was taken came to nothing; another one may be wanted."""
        self._wanting = False

    def send(self, question: Question, *, in_snapshot: bool) -> None:
        """Sends a question's packet for the turn that was granted; a whole frame's image may lie in the snapshot."""
        assert self._turn is not None
        number, turn, packet = question.number, self._turn, question.packet
        self._turn = None
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(number, turn, packet, speak=question.speak)
            self.link.send(message, arrays)
        else:
            whole, arrays = frame_message(number, turn, packet, in_snapshot=in_snapshot, speak=question.speak)
            self.link.send(whole, arrays)

    def receive(self, timeout_ms: int, *, answer_due: bool) -> Received | None:
        """The next message, None where none comes in time; notes how long that has been so."""
        received = self.link.receive(timeout_ms)
        awaited = self.ready and (answer_due or self._wanting)
        self._patience.look(waiting=awaited, heard=received is not None)
        return received
