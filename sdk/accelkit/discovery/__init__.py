"""Discovery, probing and loading of plugins.

Read the modules in this order:

- ``metadata``: the installed plugins, read from metadata alone.
- ``policy`` and ``compatibility``: which plugins may be used.
- ``device_table``: facts about devices.
- ``catalog``: one record per name, with its status.
- ``loading``: imports a single plugin.
- ``probing``: probes plugins in child processes, which run ``probe_worker`` and ``import_side_effects``.
- ``verdict_cache``: earlier verdicts.
- ``autoload``: backends that torch imports automatically.
"""
