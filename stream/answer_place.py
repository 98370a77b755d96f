"""Where an answer stage is reached, whom it takes in there, and how it greets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.counting import counted
from arr_coc.errors import OptionError
from stream.errors import TransportError
from stream.guests import Guests
from stream.messages import PROTOCOL, UNSEEN_MAX, Hello, Join
from stream.speaker import Speaker
from stream.transport.curve import ServerCurve


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """Where the stage is reached. `shared`: it serves whoever comes, and outlives the failure of one answer.

    `encode` is what it encodes, where its guests may think otherwise. `ready` is called once the model has been loaded;
    `answering` says from then on what it answers by.
    """

    endpoint: str
    encode: str | None = None
    curve: ServerCurve | None = None
    shared: bool = False
    ready: Callable[[], None] = lambda: None
    answering: Callable[[], str] = lambda: ""


def check_joining(message: Join, place: AnswerPlace, guests: Guests) -> None:
    """Raises TransportError or OptionError where the sender cannot be taken in, saying what to do about it."""
    if message.protocol != PROTOCOL:
        raise TransportError(
            f"the answer stage speaks version {PROTOCOL} of the protocol, and was spoken to in version "
            f"{message.protocol}; install the same version at both ends"
        )
    if guests.full:
        raise TransportError(f"the answer stage serves {counted(len(guests), 'other')} already; try another one")
    if place.encode not in (None, message.encode):
        raise OptionError(
            f"the answer stage encodes {place.encode}, not {message.encode}; give --encode {place.encode} here, or "
            f"start it with --encode {message.encode}"
        )


UNSEEN_CHARS = 40
"""Of a word that a model has never seen, so much is told."""


def greeting(speaker: Speaker, answering: str, unseen: tuple[str, ...] = ()) -> Hello:
    """What a guest is told first: whom it talks to, and which words of its standing question that has never seen."""
    return Hello(
        model_id=speaker.model_id,
        knows_levels=speaker.knows_levels,
        known_world=speaker.known_world,
        allocator=speaker.allocator,
        answering=answering,
        unseen=tuple(word[:UNSEEN_CHARS] for word in unseen[:UNSEEN_MAX]),
    )
