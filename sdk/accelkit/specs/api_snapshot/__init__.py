"""Snapshots of the specifications that plugins build on, one JSON file per version of accelkit, and comparison of two of them.

griffe 2.4 was tried for this, but it finds too little. Its ``find_breaking_changes`` reports what breaks the callers of a function. Most
of what is recorded here is overridden by plugins and called by the core, and the arguments of hooks are passed by name. Of the 24 kinds
of changes in ``tests/specs/test_snapshot_diff.py`` that force plugins to change, griffe reports 10. It does not report changed annotations,
changed return types, changed defaults of attributes, new fields without a default, a changed order of fields, or a new parameter with a
default that the core passes to an overridden method. Three changes of hooks that affect no plugin are reported as breaking. ``diff.py``,
``signature_diff.py`` and ``impact.py`` would therefore stay. griffe could only replace ``members`` in ``snapshot.py`` (about 60 lines),
but it reads source code: it sees neither values (for the default ``Capabilities()``, it records this text and not the value,
``Capabilities({})``) nor the markers of hooks. It takes 0.3 s to import and 1.3 s to load accelkit, whereas ``snapshot.py`` makes a record
in 0.02 s. griffe's record is three times as long.
"""
