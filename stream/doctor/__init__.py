"""What works on this machine: one check for each thing, and for what does not work, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from stream.config import Config
from stream.doctor import model_fit as cards
from stream.doctor import model_fit as fitness
from stream.doctor import system as hardware
from stream.doctor import system as software
from stream.doctor.system import DiagnosticCheck

__all__ = ["DiagnosticCheck", "all_needed_work", "examine"]


STORES = ("cpu", "gl", "cuda")
"""Where the texture may lie."""

log = logging.getLogger(__name__)


def examine(config: Config, streams: int = 1, begin: Callable[[str], None] | None = None) -> Iterator[DiagnosticCheck]:
    """Yield every check as soon as it is made, in the order in which they are shown.

    `begin` is told the part that is checked next. Loads no model and holds nothing; takes seconds, most of them for
    torch and for the texture stores. The memory is that of an answer stage for so many `streams`.
    """
    checks: tuple[tuple[str, Callable[[], DiagnosticCheck]], ...] = (
        ("python", software.python),
        ("libraries", software.libraries),
        ("torch", partial(software.library, "torch", "torch")),
        ("transformers", partial(software.library, "transformers", "transformers", imported=False)),
        ("opencv", partial(software.library, "cv2", "opencv-python-headless", part="opencv")),
        ("ffmpeg", software.ffmpeg),
        ("decoders", software.decoders),
        ("heat maps", software.heatmaps),
        ("network", software.network),
        ("plots", software.plots),
        ("sockets", software.sockets),
        ("frames", software.shared_frames),
        ("cameras", hardware.cameras),
        *((f"texture {name}", partial(hardware.texture, name, config.texture.backend)) for name in STORES),
        ("cuda", partial(hardware.cuda, config.answer.device)),
        ("model", partial(fitness.model, config)),
        ("memory", partial(fitness.memory, config, streams=streams)),
        ("cards", partial(cards.cards, config, streams)),
    )
    for part, check in checks:
        if begin is not None:
            begin(part)
        yield _checked(part, check)


def all_needed_work(checks: Sequence[DiagnosticCheck]) -> bool:
    return not any(check.state == "broken" for check in checks)


def _checked(part: str, check: Callable[[], DiagnosticCheck]) -> DiagnosticCheck:
    """The check, or that it failed by itself: one that breaks must not hide the others."""
    try:
        return check()
    except Exception as error:
        log.debug("checking %s failed", part, exc_info=True)
        text = " ".join(str(error).split()) or type(error).__name__
        return DiagnosticCheck(
            part, "broken", f"cannot be used: {text}", "pip install --force-reinstall arr-coc-stream"
        )
