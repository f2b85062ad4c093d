"""Interpreters that are forked with Lightning already imported, which takes several seconds of processor time in each process of a job."""

from __future__ import annotations

import preloaded


def python(package: str = "lightning") -> str:
    """Return the path of such an interpreter.

    Args:
        package: The package that is imported: ``lightning`` or ``pytorch_lightning``.
    """
    return str(preloaded.programs("lightning.pytorch" if package == "lightning" else package) / "python")
