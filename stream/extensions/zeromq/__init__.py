"""Sockets for robots and other programs: events, and a control socket for questions."""

from stream.extension import CommandType, Extension, SinkType, SourceType

EXTENSION = Extension(
    name="zeromq",
    section="stream.extensions.zeromq.section:ZeromqSection",
    sinks=(
        SinkType(
            key="zeromq.publish",
            place="address",
            option="--publish",
            needs=frozenset({"maps", "frames at once"}),
            check="stream.extensions.zeromq.section:check_publish",
            open="stream.extensions.zeromq.sinks:PublishSink.open",
        ),
        SinkType(
            key="zeromq.control",
            place="address",
            option="--control",
            check="stream.extensions.zeromq.section:check_control",
            open="stream.extensions.zeromq.sinks:ControlSink.open",
        ),
    ),
    commands=(CommandType(function="stream.extensions.zeromq.command:ask", before="mcp"),),
    sources=(
        SourceType(
            forms="`zmq+tcp://HOST:PORT`, `zmq+ipc://PATH`",
            help="frames from another program over ZeroMQ",
            prefixes=("zmq+",),
            check="stream.extensions.zeromq.address:check_source",
            one_stream=True,
            open="stream.extensions.zeromq.source:open_zmq",
        ),
    ),
)
