"""Data loading: move batches to the device and divide a loader among processes."""
