"""MQTT: the broker's address, the topics of a run, and the connection. Needs the extra `mqtt`."""
