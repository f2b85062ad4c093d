"""Calls to a hook plugin's implementations through accelkit's plugin manager, with a time limit."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit import AccelkitError, Availability, ClusterDetection, hookimpl
from accelkit.plugin_manager import PluginManager
from accelkit_conformance.oracle.call_limit import limited
from accelkit_conformance.oracle.confinement import confined

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

SECONDS = 2.0
SECOND_PLUGIN = "accelkit-conformance==0"
"""The distribution and version of the second plugin that is registered alongside the plugin under test."""


class HookCalls:
    """The hooks of a new instance of the plugin under test, registered with a plugin manager of its own.

    Each call to ``call_around`` or ``call_with_failing_plugin`` creates another instance and another plugin manager.

    Attributes:
        changes: The names of the process's settings that the last call changed. After each call, the previous values are restored.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.changes: list[str] = []
        self.manager = PluginManager()
        self._plugin = new_plugin(subject)
        self.manager.add(self._plugin, subject.record.plugin)

    def implemented(self, hooks: Sequence[str]) -> list[str]:
        """Return the names in ``hooks`` for which the plugin has an implementation or a hook wrapper."""
        return [hook for hook in hooks if getattr(self.manager.hook, hook).get_hookimpls()]

    def wrapped(self) -> list[str]:
        """Return the names of the hooks for which the plugin has a hook wrapper."""
        every = [one.name for one in self.manager.get_hookcallers(self._plugin) or ()]
        return [hook for hook in every if any(one.wrapper or one.hookwrapper for one in getattr(self.manager.hook, hook).get_hookimpls())]

    def is_first_result(self, hook: str) -> bool:
        """Return whether only the first result of the hook is used."""
        return bool(getattr(self.manager.hook, hook).spec.opts["firstresult"])

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook. Return its first result if ``is_first_result(hook)`` is True, otherwise the list of its results that are not None.

        Args:
            hook: The name of the hook.
            arguments: Arguments that replace those with which a Runtime on the CPU calls the hook.

        Raises:
            AssertionError: If an implementation raises an error or exceeds the time limit of ``SECONDS``.
        """
        try:
            return self._limited(self.manager, hook, arguments)
        except Exception as error:
            raise AssertionError(f"{hook} raised {type(error).__name__}: {error}") from error

    def call_around(self, hook: str, function: Callable[[], Any]) -> Any:
        """Call a hook that the plugin under test wraps and a second plugin implements, and return the result of the hook.

        The second plugin's implementation returns ``function()``. Errors of ``function`` propagate, unless the wrapper catches them.

        Raises:
            AssertionError: If the call exceeds the time limit of ``SECONDS``.
        """
        return self._limited(self._with_second_plugin(hook, function), hook, {})

    def call_with_failing_plugin(self, hook: str) -> Any:
        """Call a hook that the plugin under test implements or wraps, while a second plugin's implementation fails.

        The second plugin's implementation of the hook raises an error. Return the hook's result if the error does not reach the caller, for
        example because a wrapper of the plugin under test catches it.

        Raises:
            HookError: If the error reaches the caller. A Runtime also converts such an error to a HookError.
        """

        def fail() -> None:
            raise ValueError("another plugin fails")

        manager = self._with_second_plugin(hook, fail)
        with manager.naming_failures(hook):
            return self._limited(manager, hook, {})

    def call_confined(self, hook: str) -> Any:
        """Call a hook as ``call`` does, but do not let the implementation start a program, send a signal or connect to anything.

        If the implementation attempts any of these, the attempt raises an OSError.

        Returns None if the implementation raises an AccelkitError. Also returns None if the implementation makes such an attempt before it
        raises any other error or exceeds the time limit.

        Raises:
            AssertionError: If, without having made such an attempt, the implementation raises an error other than AccelkitError or exceeds
                the time limit.
        """
        with confined() as attempts:
            try:
                return self._limited(self.manager, hook, {})
            except AccelkitError:
                return None
            except Exception as error:
                if attempts:
                    return None
                raise AssertionError(f"{hook} raised {type(error).__name__}: {error}") from error

    def _with_second_plugin(self, hook: str, function: Callable[[], Any]) -> PluginManager:
        manager = PluginManager()
        manager.add(new_plugin(self._subject), self._subject.record.plugin)
        manager.add(_implementing(hook, function), SECOND_PLUGIN)
        return manager

    def _limited(self, manager: PluginManager, hook: str, replaced: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="accelkit-hooks-") as folder:
            given = _arguments(hook, Path(folder)) | replaced
            with restored_state() as self.changes, limited(self._subject, hook, SECONDS):
                return getattr(manager.hook, hook)(**given)


def new_plugin(subject: Subject) -> object:
    """Return a new instance of the plugin under test.

    Raises:
        AssertionError: If the constructor exceeds the time limit.
    """
    with limited(subject, "the constructor", SECONDS):
        plugin: object = subject.plugin()
        return plugin


def _arguments(hook: str, folder: Path) -> dict[str, Any]:
    """Return the arguments that a Runtime on the CPU passes to the hook, with ``folder`` as the path.

    ``detect_cluster`` gets no environment variables.
    """
    import torch

    from accelkit import Runtime

    if hook in ("runtime_created", "process_group_initialized"):
        return {"state": Runtime("cpu").state}
    if hook in ("setup_device", "get_device_stats"):
        return {"device": torch.device("cpu")}
    if hook == "make_precision":
        return {"name": "32-true", "accelerator": Runtime("cpu").accelerator, "device": torch.device("cpu")}
    if hook == "detect_cluster":
        return {"environ": {}}
    return {"path": folder} if hook in ("checkpoint_saved", "checkpoint_loaded", "job_preempted") else {}


def inner_result(hook: str) -> Any:
    """Return a valid result that an implementation of the hook may return, or None if the hook's results are ignored."""
    from accelkit import Precision

    results: dict[str, Any] = {
        "get_device_stats": {"memory.allocated.bytes": 1.0},
        "doctor_checks": {"driver": Availability.usable("it answers")},
        "make_precision": Precision(),
        "detect_cluster": ClusterDetection("local", 0, "no launcher started this process"),
        "requeue": True,
    }
    return results.get(hook)


def _implementing(hook: str, function: Callable[[], Any]) -> object:
    """Return a hook plugin whose implementation of the hook calls ``function``."""

    def implementation(self: object) -> Any:
        return function()

    return type("Implementing", (), {hook: hookimpl(implementation)})()


def train(hooks: Sequence[object]) -> dict[str, Any]:
    """Train a model with dropout for three steps on the CPU with these hook plugins, save and load it, and return its weights."""
    with restored_state():
        return _trained(hooks)


def _trained(hooks: Sequence[object]) -> dict[str, Any]:
    import torch

    from accelkit import Runtime

    torch.manual_seed(0)
    runtime = Runtime("cpu", precision="32-true", hooks=hooks)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        runtime.backward(model(torch.rand(8, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory(prefix="accelkit-hooks-") as folder:
        runtime.load_state(runtime.save_state(folder))
    runtime.device_stats()
    runtime.teardown()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@contextlib.contextmanager
def restored_state() -> Iterator[list[str]]:
    """Context manager that restores the environment variables, the working directory, torch's default dtype and the grad mode.

    It yields a list. At the end of the block, the names of the settings that the block changed are added to this list.
    """
    import torch

    def state() -> dict[str, object]:
        flags = {"torch's default dtype": torch.get_default_dtype(), "the grad mode": torch.is_grad_enabled()}
        return {"the working directory": os.getcwd(), **flags, **{f"os.environ[{name!r}]": value for name, value in os.environ.items()}}

    before, variables, dtype, is_grad, folder = state(), dict(os.environ), torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd()
    changed: list[str] = []
    try:
        yield changed
    finally:
        after = state()
        changed += sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        os.environ.clear()
        os.environ.update(variables)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(is_grad)
        os.chdir(folder)
