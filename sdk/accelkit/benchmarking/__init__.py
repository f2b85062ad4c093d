"""accelkit bench: how fast a device is, compared with the CPU of the same machine and with the device's own limits."""
