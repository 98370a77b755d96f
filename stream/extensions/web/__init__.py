"""Web page that shows a run while it goes on: access rules, viewers, server. Needs the extra `web`."""

from stream.extension import CommandType, Extension, SinkType
from stream.options.extra import Extra

WEB = Extra("web", "web page", "watch --web", ("starlette", "uvicorn", "websockets"))

EXTENSION = Extension(
    name="web",
    section="stream.extensions.web.section:WebSection",
    sinks=(
        SinkType(
            key="web.address",
            option="--web",
            extra=WEB,
            needs=frozenset({"viewer pictures"}),
            check="stream.extensions.web.access:check",
            open="stream.extensions.web.sink:WebSink.open",
            shared="stream.extensions.web.sink:SharedCamerasPage",
        ),
    ),
    watch="stream.extensions.web.command:watch_browser",
    demo="stream.extensions.web.command:show_demo",
    commands=(CommandType(function="stream.extensions.web.command:web", before="demo", grouped=True),),
)
