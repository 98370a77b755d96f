"""Clips and labels that `adapt` learns from, its progress bar and its table."""
