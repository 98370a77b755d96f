"""Allocation on the texture's device: maps of a stream, choices and packets that never visit the host."""
