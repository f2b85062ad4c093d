"""Benchmarks of a device for ``accelkit bench``.

The results are compared with the CPU's results on the same machine, and with the device's own limits.
"""
