"""Start the processes of a job from the command line (``elastic``) or from Python (``spawn_launcher``).

``device_allocation`` chooses the devices and the number of processes, ``worker_main`` runs first in each process, ``local_workers``
starts, watches and ends the processes of one machine, ``log_tee`` keeps their output, and ``failures`` finds the one that failed first.
"""
