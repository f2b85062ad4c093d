"""Detect which cluster environment a process is in and why, in this process or in a child process."""
