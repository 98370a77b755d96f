"""Options of the command line that set configuration keys. Loads nothing, so that help and errors come at once."""
