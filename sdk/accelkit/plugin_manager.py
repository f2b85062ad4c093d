"""The plugin manager of a Runtime. It checks and registers the selected plugins and the hook plugins that the user enabled."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pluggy

from accelkit.discovery.loading import describe
from accelkit.errors import AccelkitError, HookError
from accelkit.specs.hooks import HOOK_SPECIFICATIONS
from accelkit.specs.static_checks.hook_methods import mark_of, wrong_hooks
from accelkit.types import OWN_DISTRIBUTION


class PluginManager(pluggy.PluginManager):
    """pluggy's plugin manager with accelkit's hook specifications.

    If a base class marks a method with ``@hookimpl``, the method is also a hook implementation in subclasses that override it without the
    marker.
    """

    def __init__(self) -> None:
        super().__init__("accelkit")
        self._owners: list[tuple[object, str]] = []
        for specification in HOOK_SPECIFICATIONS:
            self.add_hookspecs(specification)

    def add(self, plugin: object, owner: str) -> None:
        """Check a plugin instance, and register it unless it is registered already.

        Args:
            plugin: The selected accelerator, precision, cluster environment or strategy, or a hook plugin.
            owner: The plugin's ``dist==version``, for errors.

        Raises:
            HookError: If an implementation does not match its specification.
        """
        validate_hooks(plugin, owner)
        if self.is_registered(plugin):
            return
        try:
            self.register(plugin, name=f"{owner}:{type(plugin).__qualname__}:{id(plugin)}")
        except pluggy.PluginValidationError as error:
            kind = type(plugin).__name__
            hint = "a wrapper yields once and returns the result of the yield; docs/vendors/hooks.md has an example"
            why = "; ".join(str(error).splitlines()[1:])  # the first line contains the internal name of the registration
            raise HookError(f"a hook of {kind} cannot be registered", plugin=owner, why=why, hint=hint) from error
        self._owners.append((plugin, owner))

    @contextlib.contextmanager
    def naming_failures(self, hook: str, hint: str = "", handled: str | None = None) -> Iterator[None]:
        """Inside the context, convert an error of a hook implementation to a HookError that names the plugin.

        Args:
            hook: The name of the hook.
            hint: The hint of the HookError. The default hint says how to go on without the plugin.
            handled: The ``dist==version`` of a plugin whose errors the caller handles. Errors of this plugin, and errors that come from no
                registered plugin, are then passed on unchanged. None means that the errors of every plugin are converted, and so are
                errors that come from no registered plugin, for which the HookError names no plugin.

        Raises:
            HookError: If an implementation raises an error, which becomes the cause. accelkit's own errors are passed on unchanged.
        """
        try:
            yield
        except AccelkitError:
            raise
        except Exception as error:
            owner = self._owner_of(error)
            if handled is not None and owner in ("", handled):
                raise
            hint = hint or "see the traceback above; omit the hook plugin, or report the error to its vendor"
            raise HookError(f"the hook {hook} failed", plugin=owner, why=describe(error), hint=hint) from error

    def owner_that_returns(self, hook: str, is_wrong: Callable[[Any], bool], **arguments: Any) -> str:
        """Return the ``dist==version`` of the first plugin that returns a wrong value from a hook, or "" if none does.

        The implementations are called one by one.

        Args:
            hook: The name of the hook.
            is_wrong: A function that returns whether a value from an implementation is wrong.
            **arguments: The arguments of the hook.
        """
        for plugin, owner in self._owners:
            others = [other for other, _ in self._owners if other is not plugin]
            if any(is_wrong(result) for result in self.subset_hook_caller(hook, others)(**arguments)):
                return owner
        return ""

    def other_owners(self, hook: str) -> str:
        """Return a comma-separated list of the ``dist==version`` of each plugin that implements a hook.

        accelkit's own plugins are left out.
        """
        implementing = [implementation.plugin for implementation in getattr(self.hook, hook).get_hookimpls()]
        owners = [owner for plugin, owner in self._owners if any(plugin is one for one in implementing)]
        return ", ".join(dict.fromkeys(owner for owner in owners if not owner.startswith(f"{OWN_DISTRIBUTION}==")))

    def _owner_of(self, error: BaseException) -> str:
        """Return the ``dist==version`` of the plugin whose hook implementation raised the error, or "" if no plugin raised it.

        A traceback lists the outermost call first. The plugin that raised the error is the last one in the traceback that was called by
        pluggy. Plugins listed above this plugin are wrappers, through which the error only passed. Plugins listed below it were called by
        this plugin itself, without pluggy.
        """
        named, is_called_by_pluggy = "", True
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith("pluggy."):
                is_called_by_pluggy = True
            elif is_called_by_pluggy and (owner := self._owner_of_frame(frame)):
                named, is_called_by_pluggy = owner, False
        return named

    def _owner_of_frame(self, frame: FrameType) -> str:
        return next((owner for plugin, owner in self._owners if frame.f_locals.get("self") is plugin), "")

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return mark_of(type(plugin), name)


def wrong_hook_result(hook: str, result: object, expected: str, owner: str) -> HookError:
    """Return the error that states what an implementation of a hook returned, and what it should have returned."""
    return HookError(
        f"an implementation of the hook {hook} returned an invalid value",
        plugin=owner,
        why=f"it returned {result!r:.80} ({type(result).__name__}) instead of {expected}",
        hint="omit the hook plugin, or report this to its vendor; the reference of hooks says what each returns",
    )


def validate_hooks(plugin: object, owner: str) -> None:
    """Check that every method marked as a hook implementation matches its specification.

    Raises:
        HookError: If ``plugin`` is a class instead of an instance, if it implements a hook that does not exist, or if an implementation
            requires an argument that its hook does not have.
    """
    if isinstance(plugin, type):
        hint = f"register an instance: {plugin.__name__}()"
        raise HookError(f"the hook plugin {plugin.__name__} is a class", plugin=owner, why="hooks are methods of an instance", hint=hint)
    for what, why, hint in wrong_hooks(type(plugin)):
        raise HookError(what, plugin=owner, why=why, hint=hint)
