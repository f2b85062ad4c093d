"""Comparison of the results of a model's operators on the device with the results on the CPU: see ``Runtime.compare_to_cpu``."""
