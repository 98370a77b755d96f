"""Changes of a run's watches while it goes on."""

from stream.extension import Extension

EXTENSION = Extension(name="watches", asker="stream.extensions.watches.changes:WatchChanges")
