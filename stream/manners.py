"""How an answer stage is spoken to: what is sent, and how things go on when it is lost."""

from __future__ import annotations

from dataclasses import dataclass

from stream.journal import Journal
from stream.snapshot import SnapshotWriter


@dataclass(frozen=True, slots=True)
class Manners:
    """What is sent, and how the conversation goes on when the answer stage is lost.

    `encode` is what the packets are for. `rejoin`: a new answer stage is looked for, else the run ends. `repeat`: it is
    asked again what the lost one was asked, else that answer is given up, as it would be late. `supervised`: somebody
    else notices its death. `snapshot`: where whole frames are laid, shared with it; `journal`: the answers of a run
    that this one continues. `until` is a standing question, to be looked at with every packet.
    """

    encode: str = "sparse"
    until: str | None = None
    rejoin: bool = False
    repeat: bool = False
    supervised: bool = True
    snapshot: SnapshotWriter | None = None
    journal: Journal | None = None
