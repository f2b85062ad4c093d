"""Atomic checkpoints. The job that loads a checkpoint may have a different number of processes than the job that saved it."""
