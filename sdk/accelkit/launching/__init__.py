"""Starting the processes of a job: from the command line (``elastic``) and from Python (``spawning``).

``choosing`` says what runs and how many times, ``rank`` is the first thing in each process, ``ranks`` starts the processes of one
machine, watches and ends them, ``streams`` keeps what they print, ``failures`` tells which one failed first.
"""
