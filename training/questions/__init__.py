"""Questions about drawn clips."""
