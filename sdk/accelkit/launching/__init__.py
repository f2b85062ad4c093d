"""Start the processes of a job from the command line (``elastic``) or from Python (``spawn_launcher``).

From the command line, ``elastic`` runs an ``agent`` on each machine with the settings in ``job``. The agents find each other through
``rendezvous``. If the number of machines may change, ``elastic_agent`` is used instead of ``agent``, and ``membership`` instead of
``rendezvous``. ``local_workers`` starts, watches and ends the processes of one machine, ``worker_main`` runs first in each process, and
``log_tee`` logs and shows the output of all processes.

From Python, ``spawn_launcher`` starts processes that run ``spawn_worker``.

In both cases, ``device_allocation`` chooses the devices, ``process_tree`` ends processes, and ``failures`` finds the process that failed
first.
"""
