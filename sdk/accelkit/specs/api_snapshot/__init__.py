"""Snapshots of the specifications that plugins build on, one JSON file per version of accelkit, and comparison of two snapshots.

The package griffe (2.4) does not replace this package. Its ``find_breaking_changes`` reports what breaks the callers of a function, but
plugins mostly override what is recorded here, and hooks get their arguments by name. Of the 24 kinds of changes in
``tests/specs/test_snapshot_diff.py`` that force plugins to change, griffe reports 10. It also reads source code, so it sees neither values
nor the markers of hooks.
"""
