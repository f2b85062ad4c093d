"""Importing or probing the plugin leaves no thread running, does not change environment variables, signal handlers, the working directory
or torch's functions, and does not initialise the driver. Only ``load`` and ``setup_device`` may have such effects. Each check uses a new
process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import EVERY_KIND, check
from accelkit_conformance.subprocess_checks import in_child

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def importing_changes_nothing(subject: Subject) -> None:
    """Importing the plugin leaves no thread running, does not change environment variables (other than ``TORCHINDUCTOR_*``), signal
    handlers or the working directory, and replaces no function or class of torch. If the plugin is an accelerator, probing it has none of
    these effects either."""
    changes = in_child(subject.record, "import", "probe", "footprint")["changes"]
    assert not changes, "it " + "; it ".join(changes)


@check("contract", needs_hardware=False)
def importing_initializes_no_driver(subject: Subject) -> None:
    """Importing and probing the plugin do not initialise the driver: ``torch.<device_type>.is_initialized`` returns False. The check passes
    for the CPU, and for a device without this function."""
    assert not in_child(subject.record, "import", "probe", "footprint")["initialized"], "the driver is initialised"
