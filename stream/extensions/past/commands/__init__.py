"""Commands that read the past."""
