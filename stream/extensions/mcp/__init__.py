"""Model Context Protocol: agents ask cameras through tools. Needs the extra `mcp`."""

from stream.extension import CommandType, Extension
from stream.options.extra import Extra

MCP = Extra("mcp", "agents", "mcp", ("mcp", "httpx2", "uvicorn"))

EXTENSION = Extension(
    name="mcp",
    commands=(CommandType(function="stream.extensions.mcp.command:mcp", before="serve-answers"),),
)
