"""Processes and threads of a run: started, kept alive and stopped, and their events brought together."""
