"""State, health and figures of a run, for displays and for other programs."""
