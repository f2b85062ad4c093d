"""Start the processes of a job from the command line (``elastic``) or from Python (``spawn_launcher``).

From the command line, ``elastic`` runs ``agent`` on each machine with the settings in ``job``. Agents meet in ``rendezvous``;
``local_workers`` starts, watches and ends the processes of one machine, ``worker_main`` runs first in each, and ``log_tee`` keeps their
output. From Python, ``spawn_launcher`` starts processes that run ``spawn_worker``. Both choose devices in ``device_allocation``, end
processes in ``process_tree``, and find the one that failed first in ``failures``.
"""
