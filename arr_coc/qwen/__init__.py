"""Adapter of Qwen-VL models: loading, encoding, prompts, decoding, sessions."""
