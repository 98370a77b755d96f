"""Live view of `watch`: text, figures and a question line on a whole terminal."""

from stream.extension import Extension

EXTENSION = Extension(name="live", display="stream.extensions.live.display:LiveDisplay.open")
