"""Real-time video for vision-language models: capture, texture, allocate, answer."""
