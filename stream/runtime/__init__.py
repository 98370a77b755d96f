"""The processes and threads of a run: started, kept alive, told to stop, and their events brought together."""
