"""Which cluster environment a process is in, and why; and the same asked in a child process."""
