"""Discovery, probing and loading of plugins.

Read the modules in this order: ``metadata`` (the installed plugins, from metadata alone), ``policy`` and ``compatibility``
(which plugins may be used), ``device_table`` (facts about devices) and ``catalog`` (one record per name, with its status);
then ``loading`` (imports a single plugin), ``probing`` (probes plugins in child processes, which run ``probe_worker`` and
``import_side_effects``), ``verdict_cache`` (earlier verdicts) and ``autoload`` (backends that torch imports automatically).
"""
