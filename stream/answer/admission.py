"""Admission of clients to an answer server: its options, who may connect, and the first message to a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from arr_coc.errors import counted
from stream.answer.model import AnswerModel
from stream.answer.server_statistics import ServerStatistics
from stream.answer.turns import ClientTable
from stream.errors import TransportError
from stream.protocol.messages import PROTOCOL, UNSEEN_MAX, Connect, ServerHello
from stream.transport.security import ServerCurve
from stream.untrusted import REASON_CHARS_MAX, cut_to

UNSEEN_CHARS = 40
"""Largest length of an unknown word in a message."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of an answer server. `shared`: it serves clients of several runs, and survives the failure of one answer.

    `encode`: the encoding that clients must use; None accepts any. `on_ready` is called once the model is loaded; from
    then on `provenance` returns the model and settings that answers depend on. `statistics` counts the server's work.
    """

    endpoint: str
    encode: str | None = None
    curve: ServerCurve | None = None
    shared: bool = False
    on_ready: Callable[[], None] = lambda: None
    provenance: Callable[[], str] = lambda: ""
    statistics: ServerStatistics = field(default_factory=ServerStatistics)


def check_admission(message: Connect, clients: ClientTable) -> None:
    """Raise TransportError, with the remedy, if the sender cannot be admitted."""
    if message.protocol != PROTOCOL:
        raise TransportError(
            f"the answer server uses version {PROTOCOL} of the protocol, and the client version "
            f"{message.protocol}; install the same version at both ends"
        )
    if clients.full:
        raise TransportError(f"the answer server has {counted(len(clients), 'client')}, its maximum; try another")


def server_hello(
    model: AnswerModel, options: ServerOptions, provenance: str, pixels_refused: str | None = ""
) -> ServerHello:
    """Return the first message to a client, about the model.

    Args:
        model: model of the server.
        options: options of the server.
        provenance: model and settings on which answers depend.
        pixels_refused: the reason that the client's pixels do not stay on their device; None if they do.
    """
    return ServerHello(
        model_id=model.model_id,
        knows_levels=model.knows_levels,
        knows_wide=model.knows_wide,
        known_world=model.known_world,
        encode=options.encode or "",
        allocator=model.allocator,
        can_glance=model.can_glance,
        attention_readable=model.attention_readable,
        provenance=provenance,
        takes_device_pixels=pixels_refused is None,
        pixels_refused=cut_to(pixels_refused or "", REASON_CHARS_MAX),
        memory_tokens=0 if model.memory is None else model.memory.tokens,
        reads_ahead=model.memory is not None and model.memory.idle_share > 0,
        notice=cut_to(model.notice, REASON_CHARS_MAX),
    )


def named_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the first unseen words of a question, cut, as a message names them."""
    return tuple(word[:UNSEEN_CHARS] for word in words[:UNSEEN_MAX])
