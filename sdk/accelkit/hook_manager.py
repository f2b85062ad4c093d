"""One plugin manager per Runtime: the selected plugins and the hook plugins that the user enabled, checked as they are registered."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pluggy

from accelkit.discovery.loading import describe
from accelkit.errors import AccelkitError, HookError
from accelkit.specs.hooks import HOOK_SPECIFICATIONS

_MARK = "accelkit_impl"

Arguments = Mapping[str, tuple[str, ...]]


class HookManager(pluggy.PluginManager):
    """pluggy's manager with accelkit's specifications.

    A method that a specification class marks as an implementation stays one when a vendor overrides it without the marker.
    """

    def __init__(self) -> None:
        super().__init__("accelkit")
        self._owners: list[tuple[object, str]] = []
        for specification in HOOK_SPECIFICATIONS:
            self.add_hookspecs(specification)

    def add(self, plugin: object, owner: str) -> None:
        """Check and register an instance.

        Args:
            plugin: The selected accelerator, precision, ..., or a hook plugin.
            owner: ``dist==version``, for errors.

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
            hint = "a wrapper yields once, and returns what the others returned; docs/hooks.md shows one"
            why = "; ".join(str(error).splitlines()[1:])  # the first line has the name under which it would be registered
            raise HookError(f"a hook of {kind} cannot be registered", plugin=owner, why=why, hint=hint) from error
        self._owners.append((plugin, owner))

    @contextlib.contextmanager
    def naming_failures(self, hook: str, aftermath: str = "") -> Iterator[None]:
        """Around a call of the hook: an error of an implementation names the plugin.

        Args:
            hook: The hook's name.
            aftermath: What the user should know of the state in which it failed.

        Raises:
            HookError: With the implementation's error as its cause. accelkit's own errors pass as they are.
        """
        try:
            yield
        except AccelkitError:
            raise
        except Exception as error:
            hint = aftermath or "see the traceback above; leave the hook plugin out, or report it to its vendor"
            raise HookError(f"the hook {hook} failed", plugin=self._owner_of(error), why=describe(error), hint=hint) from error

    def owner_that_returns(self, hook: str, is_wrong: Callable[[Any], bool], **arguments: Any) -> str:
        """``dist==version`` of the first plugin whose implementation returns something wrong, found by calling them one by one."""
        for plugin, owner in self._owners:
            others = [other for other, _ in self._owners if other is not plugin]
            if any(is_wrong(result) for result in self.subset_hook_caller(hook, others)(**arguments)):
                return owner
        return ""

    def _owner_of(self, error: BaseException) -> str:
        """Of the plugin whose method is the first in the error's traceback."""
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for plugin, owner in self._owners:
                if frame.f_locals.get("self") is plugin:
                    return owner
        return ""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return _mark_of(plugin, name)


def specified_arguments() -> Arguments:
    """Each hook's arguments, by name, in the order of its signature."""
    return {
        name: tuple(inspect.signature(function).parameters)[1:]
        for specification in HOOK_SPECIFICATIONS
        for name, function in vars(specification).items()
        if hasattr(function, "accelkit_spec")
    }


def validate_hooks(plugin: object, owner: str) -> None:
    """Check that everything marked as an implementation is one.

    Raises:
        HookError: A class instead of an instance, a hook that no specification has, or an argument that the hook does not have.
    """
    if isinstance(plugin, type):
        hint = f"register an instance: {plugin.__name__}()"
        raise HookError(f"the hook plugin {plugin.__name__} is a class", plugin=owner, why="hooks are methods of an instance", hint=hint)
    specified = specified_arguments()
    kind = type(plugin).__name__
    for name in _marked_names(plugin):
        if name not in specified:
            raise HookError(
                f"{kind}.{name} implements a hook that does not exist",
                plugin=owner,
                why=f"no specification has a hook {name!r}",
                hint=_near(name, specified, "the hooks are"),
            )
        taken = [
            parameter for parameter in inspect.signature(getattr(plugin, name)).parameters.values() if parameter.default is parameter.empty
        ]
        for parameter in taken:
            if parameter.name not in specified[name] and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                raise HookError(
                    f"{kind}.{name} takes an argument that the hook does not have",
                    plugin=owner,
                    why=f"the hook is {name}({', '.join(specified[name])}); {parameter.name!r} is not among its arguments",
                    hint=_near(parameter.name, specified[name], "an implementation may take any of"),
                )


def _marked_names(plugin: object) -> Iterator[str]:
    for name in dir(type(plugin)):
        if _mark_of(plugin, name) is not None:
            yield name


def _mark_of(plugin: object, name: str) -> Any:
    """The marker's options, found in the class or any base without touching properties; None if this is no implementation."""
    for cls in type(plugin).__mro__:
        attribute = vars(cls).get(name)
        function = getattr(attribute, "__func__", attribute)
        if inspect.isfunction(function) and hasattr(function, _MARK):
            return getattr(function, _MARK)
    return None


def _near(name: str, names: Any, otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(names) or 'none'}"
