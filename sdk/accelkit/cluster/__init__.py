"""Detection of the cluster environment, either in this process itself or, for the command line, in a child process."""
