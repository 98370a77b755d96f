"""Pictures and videos of matches."""
