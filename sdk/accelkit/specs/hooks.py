"""The hook specifications, and the marker by which plugins implement them.

One answerer is a method; where others may join or wrap, it is a hook. Every ``Runtime`` has a plugin manager of its own, with
the selected accelerator, precision, cluster environment and strategy, and the hook plugins that the user enabled by name.
An implementation takes any subset of the arguments, by name::

    from accelkit import hookimpl

    class StepLog:
        @hookimpl
        def checkpoint_saved(self, path):
            print("saved", path)

    rt = accelkit.Runtime(hooks=[StepLog()])

No hook is called on the step path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from accelkit.types import Availability, Detection, RuntimeState

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator
    from accelkit.specs.precision import Precision

hookspec = pluggy.HookspecMarker("accelkit")
hookimpl = pluggy.HookimplMarker("accelkit")


class AcceleratorHooks:
    """What happens to the device. The accelerator's own methods of these names take part."""

    @hookspec
    def setup_device(self, device: torch.device) -> None:
        """Called once by each process's Runtime, at first use of the device, before anything is placed on it.

        Make ``device`` current, set allocator options. May initialise the driver. Results are ignored; a wrapper may
        run code before and after.
        """

    @hookspec
    def teardown(self) -> None:
        """Called once by each process's ``Runtime.teardown`` if the device was set up. Results are ignored; wrappable."""

    @hookspec
    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:  # type: ignore[empty-body]
        """Called by ``Runtime.device_stats()`` on the process that asks; all mappings are merged, the accelerator's first.

        Keys name the quantity and its unit (``memory.allocated.bytes``, ``temperature.celsius``).
        """

    @hookspec
    def doctor_checks(self) -> Mapping[str, Availability]:  # type: ignore[empty-body]
        """Called by ``accelkit doctor`` in a process of its own, after the probe; checks by name, shown in the table.

        Must not initialise the driver.
        """


class PrecisionHooks:
    """How numbers are stored and computed."""

    @hookspec(firstresult=True)
    def make_precision(self, name: str, accelerator: Accelerator, device: torch.device) -> Precision | None:
        """Called once by each process's Runtime at first use; the first result that is not None is used.

        The accelerator's own implementation answers before the precision plugin of that name; a wrapper may replace either's result.
        """


class ClusterEnvironmentHooks:
    """Where the process learns its rank, world size and rendezvous address."""

    @hookspec
    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """Called once by a Runtime that was given no cluster environment, on every process, before any device is touched.

        Collected from the built-ins and from the hook plugins that the user enabled; the highest rank wins. A rank below 0 is no claim, and
        its reason is shown by ``accelkit why --cluster``. Must not change ``environ``.
        """

    @hookspec
    def preempted(self, path: Path) -> None:
        """Called on every process of a job that was told to end, after its state was saved at ``path`` and before it is queued again.

        Results are ignored.
        """

    @hookspec(firstresult=True)
    def requeue(self) -> bool | None:
        """Called on one process of a job that was told to end and is to run again, after every process has saved.

        Put the job back into its scheduler's queue. The first result that is not None is used, hook plugins' before the cluster
        environment's; True means that the scheduler took it.
        """


class RuntimeHooks:
    """What the runtime did. Events: results are ignored."""

    @hookspec
    def configured(self, state: RuntimeState) -> None:
        """Called once at the end of ``Runtime.__init__`` on every process; no driver was initialised."""

    @hookspec
    def launched(self, state: RuntimeState) -> None:
        """Called once by each process's Runtime if its strategy is distributed, when all have joined and agree on what they run."""

    @hookspec
    def checkpoint_saved(self, path: Path) -> None:
        """Called after ``save_state`` has made ``path`` durable, on the main process. With ``is_async``: in the thread that wrote it."""

    @hookspec
    def checkpoint_loaded(self, path: Path) -> None:
        """Called after ``load_state`` has restored everything from ``path``, on every process."""


HOOK_SPECIFICATIONS: tuple[type, ...] = (AcceleratorHooks, PrecisionHooks, ClusterEnvironmentHooks, RuntimeHooks)
