"""Shared parts of the benchmark commands."""
