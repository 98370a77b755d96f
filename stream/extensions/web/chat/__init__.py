"""Programs that ask a running camera: an OpenAI-compatible endpoint, and what agents read."""
