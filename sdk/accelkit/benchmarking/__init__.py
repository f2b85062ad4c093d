"""accelkit bench: how fast a device is, beside the CPU of the same machine and beside the device's own limits."""
