"""Which plugins there are, and what is known of them.

Read in this order: ``metadata`` (what is installed, from metadata alone), ``policy`` and ``compatibility`` (what may be
used), ``known`` (facts about devices), ``catalog`` (one record a name, with its status); then ``loading`` (import one
plugin, isolated), ``probing`` (ask plugins in child processes; ``child`` is the other side, ``footprint`` what it looks
at), ``memory`` (what was answered before) and ``autoload`` (what torch imports by itself).
"""
