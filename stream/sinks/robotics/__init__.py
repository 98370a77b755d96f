"""Sinks for robotics tools: recordings as MCAP files and ROS 2 bags, and a live connection for Foxglove."""
