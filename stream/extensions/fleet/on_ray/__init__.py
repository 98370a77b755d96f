"""Cameras of one command on the nodes of a Ray cluster: Ray places and restarts them, ZeroMQ carries their data."""
