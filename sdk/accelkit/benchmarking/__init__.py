"""Benchmarks of a device for ``accelkit bench``, compared with the CPU of the same machine and with the device's own limits."""
