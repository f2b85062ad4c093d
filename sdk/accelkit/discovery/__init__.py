"""Discovery, probing and loading of plugins.

Read the main modules in this order:

- ``metadata``: the installed plugins, read from metadata alone.
- ``policy`` and ``compatibility``: which plugins may be used.
- ``device_table``: facts about devices that accelkit knows without a plugin.
- ``catalog``: one record for each plugin name, with its status.
- ``loading``: imports a single plugin.
- ``probing``: probes plugins in child processes, which run ``probe_worker``.
- ``verdict_cache``: the cached verdicts of probes and trials.
- ``autoload``: plugins that ``import torch`` imports automatically.
"""
