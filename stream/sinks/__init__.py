"""Outputs of a run: files, and services for other programs."""
