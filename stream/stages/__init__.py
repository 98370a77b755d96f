"""Stages of the pipeline, a thread each: capture, texture and allocate."""
