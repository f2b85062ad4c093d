"""Benchmarks of a device for ``accelkit bench``.

The results are compared with those of the CPU of the same machine, and with the device's own limits.
"""
