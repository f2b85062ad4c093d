"""The hook specifications, and the marker for their implementations in plugins.

A function that a Runtime calls on one plugin only is a method of a specification such as ``Strategy``. A function that several plugins of a
Runtime can implement or wrap is a hook. Every ``Runtime`` has its own plugin manager, which holds the selected accelerator, precision,
cluster environment and strategy. The plugin manager also holds the hook plugins that the user named or passed as instances. An
implementation of a hook declares only the arguments that it uses. The arguments are passed by name::

    from accelkit import hookimpl

    class RunLog:
        @hookimpl
        def checkpoint_saved(self, path):
            print("saved", path)

    rt = accelkit.Runtime(hooks=[RunLog()])

No hook is called in a training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from accelkit.job_types import ClusterDetection, RuntimeState
from accelkit.types import Availability

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator
    from accelkit.specs.precision import Precision

hookspec = pluggy.HookspecMarker("accelkit")
hookimpl = pluggy.HookimplMarker("accelkit")


class AcceleratorHooks:
    """Hooks that have the same names as methods of ``Accelerator``. The accelerator's methods are called as well."""

    @hookspec
    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` current and set allocator options. May initialise the driver.

        Called by the Runtime of each process before anything is placed on the device: at the first use of the device, and at the first use
        after each ``Runtime.teardown``. Results are ignored. A hook wrapper may run code before and after the implementations.
        """

    @hookspec
    def teardown(self) -> None:
        """Release resources of the device.

        Called by ``Runtime.teardown`` on each process if the device is set up. Results are ignored. A hook wrapper may run code before and
        after the implementations.
        """

    @hookspec
    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:  # type: ignore[empty-body]
        """Return statistics of the device, with keys that name the quantity and its unit.

        Examples of keys are ``memory.allocated.bytes`` and ``temperature.celsius``. Called by ``Runtime.device_stats()``, only on the
        process that calls ``device_stats``. The mappings of all hook plugins are merged with the mapping of the accelerator. If the
        accelerator's mapping and another mapping contain the same key, the accelerator's value is used.
        """

    @hookspec
    def doctor_checks(self) -> Mapping[str, Availability]:  # type: ignore[empty-body]
        """Return the results of additional checks by name, for the table of ``accelkit doctor``. Must not initialise the driver.

        Called by ``accelkit doctor`` on each hook plugin that can be loaded, in a separate child process for each plugin.
        """


class PrecisionHooks:
    """The hook that creates the ``Precision`` object, which determines the dtypes of storage and computation."""

    @hookspec(firstresult=True)
    def make_precision(self, name: str, accelerator: Accelerator, device: torch.device) -> Precision | None:
        """Create the precision ``name`` for ``device``. Return None to leave this to the next implementation.

        On each process, the Runtime calls this hook whenever it has set up the device. The first result that is not None is used. The
        accelerator's own implementation and those of hook plugins are called first. If all of them return None, the precision plugin named
        ``name`` is used. A hook wrapper may replace the result.
        """


class ClusterEnvironmentHooks:
    """A hook that detects the launcher or scheduler of the job, and hooks that are called when the job is preempted."""

    @hookspec
    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if this process belongs to a cluster environment, otherwise None.

        The implementation reads the variables in ``environ``, and must not change ``environ``.

        Called once on every process by a Runtime whose argument ``cluster`` is None, before any device is used. If ACCELKIT_CLUSTER names a
        cluster environment, the results are ignored. Otherwise, the Runtime compares the results of the built-in environments and of the
        hook plugins that the user enabled, and uses the ``ClusterDetection`` with the highest priority. A ``ClusterDetection`` with a
        negative priority is never used. Its reason says why the environment does not apply.
        """

    @hookspec
    def job_preempted(self, path: Path) -> None:
        """React to the preemption of the job.

        Called on every process of a job that was told to end. At this point, the job's state has been saved at ``path``, and the job has
        not been requeued yet. Results are ignored.
        """

    @hookspec(firstresult=True)
    def requeue(self) -> bool | None:
        """Put the job back into its scheduler's queue, and return whether the scheduler accepted the job.

        Called on the main process of a job that was told to end, if the Runtime was created with ``requeue=True``. At this point, the job's
        state has been saved and ``job_preempted`` has been called on every process. Hook plugins are called before the cluster environment.
        The first result that is not None is used. If all results are None, the job is not requeued.
        """


class RuntimeHooks:
    """Hooks that a Runtime calls when an event occurs, for example when a checkpoint has been saved. Their results are ignored."""

    @hookspec
    def runtime_created(self, state: RuntimeState) -> None:
        """React to the creation of a Runtime.

        Called once on every process, at the end of ``Runtime.__init__``. The Runtime has not initialised the driver yet.
        """

    @hookspec
    def process_group_initialized(self, state: RuntimeState) -> None:
        """React to the initialisation of the process group.

        Called on every process each time the Runtime sets up the device, if the strategy is distributed. At this point, all processes have
        joined the process group and have checked that they run with the same settings.
        """

    @hookspec
    def checkpoint_saved(self, path: Path) -> None:
        """React to the completion of a checkpoint.

        Called on the main process when the checkpoint ``path`` is complete and on disk. If ``save_state`` was called with
        ``is_async=True``, the thread that wrote the checkpoint calls this hook.
        """

    @hookspec
    def checkpoint_loaded(self, path: Path) -> None:
        """React to the loading of a checkpoint. Called on every process after ``load_state`` has restored everything from ``path``."""


HOOK_SPECIFICATIONS: tuple[type, ...] = (AcceleratorHooks, PrecisionHooks, ClusterEnvironmentHooks, RuntimeHooks)
