"""``install()``, which makes ``Trainer(accelerator="acme")`` and ``Fabric(accelerator="acme")`` use accelkit's plugins.

Only the ``__init__`` methods of these two classes are replaced. If accelkit handles the accelerator, the replacement uses the arguments
that ``trainer_kwargs`` or ``fabric_kwargs`` would return. No private part of Lightning is changed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from accelkit.bridges.lightning.accelerators import PluginAccelerator
from accelkit.bridges.lightning.adapter import adopt_instance, from_lightning
from accelkit.bridges.lightning.compat import FABRICS, TRAINERS, Framework, check_version, find_framework, installed
from accelkit.bridges.lightning.kwargs import AUTO, make_arguments
from accelkit.bridges.lightning.registry import forget_all, register_all, registered
from accelkit.discovery import device_table
from accelkit.errors import UnsupportedError
from accelkit.selection import decide
from accelkit.specs.accelerator import Accelerator

_DEFAULTS: dict[str, Any] = {"devices": AUTO, "num_nodes": None, "strategy": AUTO, "precision": None, "plugins": ()}
_ARGUMENTS = ("accelerator", *_DEFAULTS)
_originals: dict[Framework, tuple[Any, Callable[..., None], Callable[..., None]]] = {}


def install(*accelerators: str, package: str | None = None) -> None:
    """Make Trainer and Fabric accept the names of accelkit's accelerators. Call ``install`` again to load further plugins.

    After this call, ``auto`` means the accelerator in ACCELKIT_ACCELERATOR or, if the variable is not set, the one that accelkit selects.
    Lightning's own names (``cpu``, ``gpu``, ...) keep their meaning. A third-party Lightning accelerator, given by name or as an instance,
    trains on its own device. Without ``install``, Lightning's default strategy would train on the CPU if the job used a single device of
    such an accelerator. If ``install`` raises an error, it changes no class and registers no name.

    Args:
        accelerators: The names of plugins that have a method ``register_accelerators(registry)``. ``install`` loads these plugins and calls
            the method, which registers the names of accelerators. Do not list other plugins here; their names work anyway.
        package: The package whose classes are changed: ``lightning``, ``pytorch_lightning`` or ``lightning_fabric``. None means every one
            of these packages that is installed.

    Raises:
        UnknownNameError: If ``package`` is not one of Lightning's packages, or a name in ``accelerators`` is not the name of a plugin.
        UnavailableError: If Lightning is not installed, or the device of a plugin in ``accelerators`` is not available.
        UnsupportedError: If the version of Lightning is not supported, or if Trainer or Fabric lacks an expected argument.
        UsageError: If a plugin in ``accelerators`` has no method ``register_accelerators``.
        NameConflictError: If a plugin in ``accelerators`` registers a name that Lightning or another plugin uses.
        PluginError: If a plugin in ``accelerators`` cannot be loaded.
    """
    frameworks = [one for one in installed(TRAINERS) + installed(FABRICS) if package in (None, one.package)]
    if not frameworks:
        frameworks = [find_framework(FABRICS if package == "lightning_fabric" else TRAINERS, package)]
    for framework in frameworks:
        _check(framework)
    register_all(accelerators, frameworks[0])
    for framework in frameworks:
        if framework not in _originals:
            cls, original = framework.entry_class, framework.entry_class.__init__
            cls.__init__ = _asking_accelkit(framework, original)
            _originals[framework] = (cls, original, cls.__init__)


def uninstall() -> None:
    """Undo ``install``.

    Raises:
        UnsupportedError: If other code replaced the ``__init__`` of a class after ``install``. Such a class is not restored; the other
            classes are restored.
    """
    foreign = []
    forget_all()
    for framework, (cls, original, replacement) in list(_originals.items()):
        if cls.__init__ is not replacement:
            foreign.append(f"{framework.root}.{framework.entry}")
            continue
        cls.__init__ = original
        del _originals[framework]
    if foreign:
        raise UnsupportedError(
            f"accelkit cannot be removed from {' and '.join(foreign)}",
            why="other code replaced __init__ after accelkit did",
            hint="undo the other replacement first, then call uninstall() again",
        )


def _check(framework: Framework) -> None:
    check_version(framework)
    missing = [name for name in _ARGUMENTS if name not in inspect.signature(framework.entry_class.__init__).parameters]
    if missing:
        raise UnsupportedError(
            f"{framework.root}.{framework.entry} does not have the arguments {', '.join(missing)}",
            why="this version has other arguments, or other code replaced its __init__",
            hint="call install() before other code replaces __init__, or use trainer_kwargs() and fabric_kwargs()",
        )


def _asking_accelkit(framework: Framework, original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        rest = {name: value for name, value in kwargs.items() if name not in _ARGUMENTS}
        given = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
        original(self, *args[1:], **rest, **_translated(framework, _from_environment(framework) | given))

    return init


def _from_environment(framework: Framework) -> dict[str, Any]:
    """Return the arguments that environment variables set for Trainer.

    The names of the arguments are those in ``_ARGUMENTS``, and the variables are named ``PL_TRAINER_<ARGUMENT>``. As in Lightning, a value
    that is a Python literal is evaluated, and any other value is returned as a string. For Fabric, the dict is empty. Arguments that the
    program passes to the constructor of Trainer take precedence over the returned arguments.
    """
    found: dict[str, Any] = {}
    for name in _ARGUMENTS if framework.is_trainer else ():
        text = os.environ.get(f"PL_TRAINER_{name.upper()}")
        if text:
            try:
                found[name] = ast.literal_eval(text)
            except Exception:  # any error means that the text is not a literal
                found[name] = text
    return found


def _translated(framework: Framework, given: dict[str, Any]) -> dict[str, Any]:
    """Translate ``given``, the arguments of Trainer or Fabric, into arguments that Lightning supports."""
    requested: Any = given.get("accelerator", AUTO)
    if requested == AUTO:
        chosen = decide().chosen
        if _is_lightnings(framework, chosen):
            return given | {"accelerator": chosen}
        accelerator = None
    elif (accelerator := _accelkits(framework, requested, has_strategy=not isinstance(given.get("strategy", AUTO), str))) is None:
        return given
    return make_arguments(framework, accelerator, cluster=None, **{name: given.get(name, default) for name, default in _DEFAULTS.items()})


def _accelkits(framework: Framework, requested: Any, *, has_strategy: bool) -> Accelerator | str | None:
    """Return accelkit's accelerator for ``requested``, as an instance or a name.

    ``requested`` is the argument ``accelerator`` of Trainer or Fabric. The result is None if Lightning itself handles this argument.
    """
    if isinstance(requested, Accelerator):
        return requested
    if isinstance(requested, framework.part("accelerators").Accelerator):
        is_theirs = isinstance(requested, PluginAccelerator) or framework.owns(type(requested)) or has_strategy
        return None if is_theirs else adopt_instance(requested)
    if not isinstance(requested, str) or _is_lightnings(framework, requested):
        return None
    if requested in framework.registry:
        entry = framework.registry[requested]
        accelerator = from_lightning(entry["accelerator"], **entry["init_params"])()
        accelerator.name = requested
        return accelerator
    return registered(requested) or requested


def _is_lightnings(framework: Framework, name: str) -> bool:
    """Return whether ``name`` is an alias, such as ``gpu``, or the name of one of Lightning's own accelerators."""
    return name in device_table.aliases() or (name in framework.registry and framework.owns(framework.registry[name]["accelerator"]))
