"""Comparison of a model's operators on the device with those of the CPU: see ``Runtime.compare_to_cpu``."""
