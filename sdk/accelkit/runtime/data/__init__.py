"""Data: batches on the device, and each process's share of a loader."""
