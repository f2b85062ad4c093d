"""Detection of the cluster environment of a process, in this process or in a child process."""
