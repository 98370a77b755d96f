"""Features that hang on the core, one package each with an `EXTENSION`."""

NAMES = (
    *("api", "serve", "fleet", "bench", "adapt", "mcp", "lerobot", "onvif"),
    *("history", "shadow", "escalate", "latency", "detections", "journal", "watches", "side_questions"),
    *("hls", "film", "heatmap", "why", "record", "overlay", "clips", "zeromq", "metrics", "web", "mqtt", "webhook"),
    *("on_match", "robotics", "shared_texture", "otlp", "rerun", "past", "doctor", "live"),
)
"""Packages, in the order in which help and documents show their commands and options."""
