"""Checkpoints: whole or not at all, of any number of processes, for any other."""
