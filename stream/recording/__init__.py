"""Recordings of a run, and the journal of its answers."""
