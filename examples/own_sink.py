"""Run a video in your own program and handle its events: `examples/own_sink.py [SOURCE]`."""

import sys

from stream.config import AnswerConfig, Config
from stream.events import Answer, Cut, FrameReady
from stream.runtime.session import open_run

config = Config(
    source=sys.argv[1] if len(sys.argv) > 1 else "scene:demo",
    answer=AnswerConfig(query="Say what happens.", every_s=2.0),
)

if __name__ == "__main__":  # the model runs in another process, which imports this file
    tokens = 0
    for event in open_run(config).run():
        if isinstance(event, FrameReady):
            tokens = event.tokens
        elif isinstance(event, Cut):
            print(f"{event.pts_s:5.1f}  cut")
        elif isinstance(event, Answer):
            print(f"{event.pts_s:5.1f}  {event.text}  ({tokens} tokens of {event.tokens_total})")
