"""Profiling of the steps of a training loop: see ``Runtime.profile``."""
