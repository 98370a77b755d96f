"""Answers from a server with an OpenAI-compatible API (docs/servers.md)."""
