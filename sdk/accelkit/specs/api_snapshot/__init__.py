"""Snapshots of the specifications that plugins build on, and comparison of two snapshots. Each version of accelkit has a snapshot, in a
JSON file.

The tool griffe (2.4) is no substitute for this package. Its ``find_breaking_changes`` reports changes that break the callers of a function.
Plugins, however, mostly override the functions in a snapshot or implement them as hooks. Many changes break such overrides and hooks
without breaking any caller. ``tests/specs/test_snapshot_diff.py`` contains 24 kinds of changes that force plugins to change. griffe reports
10 of them. griffe reads source code without running it, so it sees neither the computed values of defaults nor the markers of hooks.
"""
