"""Statistics of a plugin's devices over time, read in a child process."""
