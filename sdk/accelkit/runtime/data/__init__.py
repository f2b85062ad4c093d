"""Data loading: move batches to the device, divide a loader among the processes, and resume in the middle of an epoch."""
