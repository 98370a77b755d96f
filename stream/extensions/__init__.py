"""Features that hang on the core, one package each with an `EXTENSION`."""

NAMES = (
    *("api", "fleet", "bench", "adapt", "mcp", "lerobot", "onvif", "shadow", "latency", "detections", "journal"),
    *("hls", "heatmap", "why", "record", "overlay", "clips", "zeromq", "metrics", "web", "mqtt", "webhook"),
    *("on_match", "robotics", "otlp", "rerun", "past", "doctor", "watches", "side_questions"),
)
"""Packages, in the order in which help and documents show their commands and options."""
