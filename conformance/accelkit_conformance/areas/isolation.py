"""Neither importing nor probing the plugin changes anything outside the plugin. Only ``load`` and ``setup_device`` may make such changes.
Each check uses a new process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import EVERY_KIND, check
from accelkit_conformance.subprocess_checks import in_child

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def importing_changes_nothing(subject: Subject) -> None:
    """Importing the plugin and, if it is an accelerator, probing it leave torch's functions, the environment, threads, signal handlers
    and the working directory unchanged."""
    changes = in_child(subject.record, "import", "probe", "footprint")["changes"]
    assert not changes, "it " + "; it ".join(changes)


@check("contract", needs_hardware=False)
def importing_initializes_no_driver(subject: Subject) -> None:
    """After the plugin has been imported and probed, the device's module, if there is one, is not initialised."""
    assert not in_child(subject.record, "import", "probe", "footprint")["initialized"], "the driver is initialised"
