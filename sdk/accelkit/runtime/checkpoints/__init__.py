"""Atomic checkpoints that can be saved by any number of processes and loaded by any other number."""
