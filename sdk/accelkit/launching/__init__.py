"""Start the processes of a job from the command line (``elastic``) or from Python (``spawn_launcher``).

From the command line, ``elastic`` runs ``agent`` on each machine with the settings in ``job``. Agents meet in ``rendezvous``.
``local_workers`` starts, watches and ends the processes of one machine, ``worker_main`` runs first in each process, and ``log_tee`` logs
and shows the output of all processes. From Python, ``spawn_launcher`` starts processes that run ``spawn_worker``. Both ways use
``device_allocation`` to choose devices, ``process_tree`` to end processes, and ``failures`` to find the process that failed first.
"""
