"""An answer stage for frame processes on this machine or others: `serve-answers`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stream.answer_place import AnswerPlace
from stream.answering import answering
from stream.config import Config
from stream.control import CancelledError, Control
from stream.errors import ConfigError, TransportError
from stream.signals import signals_handled
from stream.speaker import QWEN, open_speaker
from stream.stages.answer import AnswerStage
from stream.transport import Transport
from stream.transport.curve import server_curve


def serve_answers(
    config: Config, endpoint: str, ready: Callable[[], None], control: Control | None = None, speaker: str = QWEN
) -> None:
    """Loads the model and answers whoever joins at `endpoint`, until the control is cancelled or a signal comes.

    `ready` is called once the model has been loaded. For the main thread, unless `control` is given. Raises ConfigError
    where the address or the keys are no good, ModelError where the model is not.
    """
    curve = server_curve(config.network, endpoint)
    stopping = control or Control()
    transport = Transport()
    loaded = False

    def loaded_now() -> None:
        nonlocal loaded
        loaded = True
        ready()

    place = AnswerPlace(
        endpoint,
        encode=config.answer.encode,
        curve=curve,
        shared=True,
        ready=loaded_now,
        answering=lambda: answering(config),
    )
    stage = AnswerStage(lambda: open_speaker(speaker, config), place, transport, stopping)
    try:
        if control is None:
            with _signals_cancel(stopping, lambda: not loaded):
                stage.run()
        else:
            stage.run()
    except CancelledError:
        pass
    except TransportError as error:
        raise ConfigError(str(error)) from error
    finally:
        transport.close()


@contextmanager
def _signals_cancel(control: Control, loading: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """While inside: the first signal cancels; a second one, or one while a model is loading, interrupts."""

    def on_signal(number: signal.Signals) -> None:
        if number == signal.SIGHUP and control.cancelled:
            return
        if control.cancelled or loading():
            raise KeyboardInterrupt
        control.cancel()

    with signals_handled(on_signal):
        yield
