"""MQTT: the broker's address, the topics of a run, the connection. Needs the extra `mqtt`."""
