"""Rerun: a run as a recording, in a file or in the viewer. Needs the extra `rerun`."""
