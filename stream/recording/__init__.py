"""Fingerprints of a run, the journal of its answers, and parts of the files that it writes."""
