"""Comparison of answers about one picture: models in a separate process, and its handle."""
