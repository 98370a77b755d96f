"""Answers from a server with an OpenAI-compatible API (docs/servers.md). Needs the extra `api`."""

from stream.extension import Extension, ModelType
from stream.options.extra import Extra

API = Extra("api", "api", "--api", ("httpx2",))

EXTENSION = Extension(
    name="api",
    section="stream.extensions.api.section:ApiSection",
    models=(
        ModelType(
            key="api.url",
            option="--api",
            extra=API,
            name="stream.extensions.api.address:served_name",
            encode="stream.extensions.api.section:encoding_of",
            load="stream.extensions.api.model:load_api_model",
            load_text="stream.extensions.api.text:load_api_text",
            wait="stream.extensions.api.model:wait_for_server",
            provider="openai",
        ),
    ),
)
