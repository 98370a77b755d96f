"""Checks of this machine: one for each thing that runs need or can use, with the remedy if it does not work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stream.extensions.doctor.diagnostic import DiagnosticCheck

if TYPE_CHECKING:
    from stream.config import Config
    from stream.options.extra import Extra

__all__ = ["DiagnosticCheck", "all_needed_work", "examine"]

log = logging.getLogger(__name__)


def examine(config: Config, streams: int = 1, begin: Callable[[str], None] | None = None) -> Iterator[DiagnosticCheck]:
    """Yield every check as soon as it is made, in the order in which they are shown.

    `begin` receives the part that is checked next. Takes seconds, most of them for torch and for the texture stores; a
    model that is named and on this machine is loaded last, in three precisions. The memory is that of an answer stage
    for `streams` streams.
    """
    from stream.extensions.doctor import model_fit, precision, system

    probed = precision.folder_to_probe(config)
    checks: tuple[tuple[str, Callable[[], DiagnosticCheck]], ...] = (
        ("python", system.python),
        ("libraries", system.libraries),
        ("torch", partial(system.library, "torch", "torch")),
        ("transformers", partial(system.library, "transformers", "transformers", imported=False)),
        ("opencv", system.opencv),
        ("ffmpeg", system.ffmpeg),
        ("decoders", system.decoders),
        ("hardware", system.hardware_decoding),
        ("heat maps", system.heatmaps),
        ("network", system.network),
        ("plots", system.plots),
        *((extra.part, partial(system.optional, extra)) for extra in _extras()),
        ("sockets", system.sockets),
        ("frames", system.shared_frames),
        ("cameras", system.cameras),
        ("screens", system.screens),
        # texture stores that are tried
        *((f"texture {name}", partial(system.texture, name, config.texture.backend)) for name in ("cpu", "gl", "cuda")),
        ("cuda", partial(system.cuda, config.answer.device)),
        ("model", partial(model_fit.model, config)),
        ("memory", partial(model_fit.memory, config, streams=streams)),
        ("cards", partial(model_fit.cards, config, streams)),
        *([] if probed is None else [("precision", partial(precision.precision, probed))]),
    )
    for part, check in checks:
        if begin is not None:
            begin(part)
        yield _run(part, check)


def _extras() -> list[Extra]:
    """Return the extras of sinks, sources and models, and the one that a fleet needs."""
    from stream.extension.registry import extensions
    from stream.options.extra import RAY
    from stream.sinks.types import sink_types
    from stream.sources.types import source_types

    extras = [kind.extra for kind in sink_types()] + [kind.extra for kind in source_types()]
    models = [kind.extra for extension in extensions() for kind in extension.models]
    return list(dict.fromkeys(filter(None, [*extras, RAY, *models])))


def all_needed_work(checks: Sequence[DiagnosticCheck]) -> bool:
    """Return whether nothing that runs need is broken."""
    return not any(check.state == "broken" for check in checks)


def _run(part: str, check: Callable[[], DiagnosticCheck]) -> DiagnosticCheck:
    """Make a check; an exception becomes a broken one, which hides no other."""
    try:
        return check()
    except Exception as error:
        log.debug("checking %s failed", part, exc_info=True)
        text = " ".join(str(error).split()) or type(error).__name__
        return DiagnosticCheck(
            part, "broken", f"cannot be used: {text}", "pip install --force-reinstall arr-coc-stream"
        )
