"""Where the parts of these tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "build" / "cluster-parts" / "bin"
"""What ``make cluster-parts`` installs besides the system's packages."""

TELL = Path(__file__).parent / "detection_program.py"
"""A program whose every process prints, as a line of JSON, which cluster environment it finds itself in and what that says."""
