"""ROS 2 topics of an ARR-COC Stream run, made of the events that it publishes over ZeroMQ."""
