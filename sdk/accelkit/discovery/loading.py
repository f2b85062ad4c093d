"""Loading of single plugins. Any failure becomes an error that names the plugin."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from accelkit.capabilities import Capabilities, check_capability_keys
from accelkit.discovery import remedies
from accelkit.errors import AccelkitError, BrokenPluginError, message_in_one_line
from accelkit.types import FROM_CODE, OWN_DISTRIBUTION, Availability, Kind, PluginRecord

BASES: Mapping[Kind, str] = {
    "accelerator": "accelkit.specs.accelerator:Accelerator",
    "precision": "accelkit.specs.precision:Precision",
    "cluster": "accelkit.specs.cluster:ClusterEnvironment",
    "strategy": "accelkit.specs.strategy:Strategy",
}


def base_class(kind: Kind) -> type:
    """Return the specification that a plugin of this kind subclasses, or ``object`` for hooks."""
    return _resolve(BASES[kind]) if kind in BASES else object


@contextlib.contextmanager
def plugin_errors(plugin: str, doing: str, hint: str = "") -> Iterator[None]:
    """Turn any exception that the plugin's code raises inside the block into a BrokenPluginError.

    The user's Ctrl-C and accelkit's own errors are passed on unchanged.

    Args:
        plugin: The plugin's ``dist==version``.
        doing: The action, such as 'importing the accelerator acme'.
        hint: What the user can do. The default depends on the type of the error.
    """
    with _ctrl_c_noted() as noted:
        try:
            yield
        except AccelkitError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and noted:
                raise
            raise BrokenPluginError(f"{doing} failed", plugin=plugin, why=describe(error), hint=hint or remedy(error, plugin)) from error


def load_class(record: PluginRecord) -> type:
    """Import the plugin's module, check the base class and the capabilities of the plugin's class, and return the class.

    Raises:
        BrokenPluginError: If the import fails (the cause is chained), if the plugin is not a subclass of the base class for its kind, or if
            the capabilities that it declares or requires are invalid.
        AccelkitError: If the plugin's code raises an AccelkitError during the import. It is passed on unchanged.
    """
    cls: Any = record.registered_class
    if cls is None:
        with plugin_errors(record.plugin, f"importing the {record.kind} {record.name}"):
            cls = _resolve(record.value)
            if ":" in record.name:  # the name is not that of an entry point: a device type follows the colon, as in torch:<device_type>
                from accelkit.discovery import autoload  # imported here, because autoload imports this module

                device_type = record.name.partition(":")[2]
                cls = cls.for_device_type(device_type, autoload.backend_of(device_type))
    base = base_class(record.kind)
    if not isinstance(cls, type) or not issubclass(cls, base):
        what = f"a class whose bases are {_names(cls.__mro__[1:])}" if isinstance(cls, type) else f"{type(cls).__name__} {cls!r:.60}"
        raise BrokenPluginError(
            f"the entry point of the {record.kind} {record.name} is invalid",
            plugin=record.plugin,
            why=f"{record.value} is {what}",
            hint=f"the entry point must refer to a subclass of accelkit.{base.__name__}"
            if record.kind in BASES
            else "the entry point must refer to a class, of which accelkit creates an instance",
        )
    _check_declarations(cls, record)
    return cls


def _check_declarations(cls: Any, record: PluginRecord) -> None:
    """Check the capabilities that an accelerator declares, or that a precision requires. Does nothing for other kinds of plugins.

    Raises:
        BrokenPluginError: If ``declared_capabilities`` is not a Capabilities, or if ``required_capabilities`` has the wrong type or an
            unknown name.
    """
    what = f"the {record.kind} {record.name} declares invalid capabilities"
    hint = "report it to the vendor; docs/plugins.md describes these declarations"
    if record.kind == "accelerator" and not isinstance(cls.declared_capabilities, Capabilities):
        why = f"declared_capabilities is a {type(cls.declared_capabilities).__name__}; use Capabilities.declare(native=[...])"
        raise BrokenPluginError(what, plugin=record.plugin, why=why, hint=hint)
    if record.kind == "precision":
        try:
            check_capability_keys(cls.required_capabilities)
        except (TypeError, ValueError) as error:
            raise BrokenPluginError(what, plugin=record.plugin, why=f"required_capabilities: {error}", hint=hint) from error


def probe(cls: Any, record: PluginRecord) -> Availability:
    """Call ``cls.probe()``, and return the result, which says whether the plugin can be used here.

    Raises:
        BrokenPluginError: If the probe raises an error or returns anything but an Availability.
        AccelkitError: If the probe raises an AccelkitError. It is passed on unchanged.
    """
    with plugin_errors(record.plugin, f"probing {record.name}"):
        answer = cls.probe()
    if not isinstance(answer, Availability):
        raise BrokenPluginError(
            f"probe() of {record.name} did not return an Availability",
            plugin=record.plugin,
            why=f"it returned {answer!r:.80} ({type(answer).__name__})",
            hint="probe() must be a classmethod that returns accelkit.Availability",
        )
    return answer


def instantiate(cls: Any, record: PluginRecord) -> Any:
    """Call the class without arguments to create an instance and, unless it is a hook plugin, set its ``name`` and ``plugin``.

    Raises:
        BrokenPluginError: If the class lacks a method that its specification requires, or its constructor raises an error.
        AccelkitError: If the constructor raises an AccelkitError. It is passed on unchanged.
    """
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BrokenPluginError(
            f"the {record.kind} {record.name} does not implement {', '.join(missing)}",
            plugin=record.plugin,
            why=f"{record.value} lacks methods that its base class requires",
            hint=f"report it to the vendor of {record.distribution}",
        )
    with plugin_errors(record.plugin, f"creating an instance of {record.value}", hint="its __init__ must work without arguments"):
        instance = cls()
        if record.kind != "hooks":
            instance.name, instance.plugin = record.name, record.plugin
    return instance


def adopt(instance: Any) -> Any:
    """Set the name and the plugin of an instance that the program passed, if they are missing, and return the instance.

    A missing name becomes the name of the instance's class. A missing plugin becomes ``(code)==`` followed by the name of the class's
    module.
    """
    instance.name = instance.name or type(instance).__name__
    instance.plugin = instance.plugin or f"{FROM_CODE}=={type(instance).__module__}"
    return instance


def describe(error: BaseException) -> str:
    """Describe an error and, if its root cause is another error, the root cause too."""
    chain = [error]
    while (cause := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__)) and cause not in chain:
        chain.append(cause)
    first, last = chain[0], chain[-1]
    return _spell(first) if first is last else f"{_spell(first)} (root cause: {_spell(last)})"


def remedy(error: BaseException, plugin: str) -> str:
    """Return the usual remedy for an error that the plugin (``dist==version``) raised."""
    distribution, _, rest = plugin.partition("==")
    roots = [error, error.__cause__, error.__context__]
    if distribution == OWN_DISTRIBUTION:  # the code that failed may belong to a package that a built-in plugin imports
        return (
            remedies.by_cause(error)
            or f"reinstall {distribution}; if that does not help, report the problem with the output of accelkit env"
        )
    if distribution == FROM_CODE:
        return f"correct it: the plugin is this program's own code, in {rest}"
    disable = f"ACCELKIT_DISABLE_PLUGINS={distribution} disables it"
    if cause := remedies.by_cause(error):
        return f"{cause}, or report it to the vendor of {distribution}; {disable}"
    if any(isinstance(root, OSError | ImportError) for root in roots):
        return f"install the missing library or add its folder to the loader's path, or reinstall {distribution}; {disable}"
    return f"report it to the vendor of {distribution} (accelkit doctor --verbose shows the traceback); {disable}"


def _resolve(value: str) -> Any:
    module, _, attributes = value.partition("[")[0].partition(":")
    found: Any = importlib.import_module(module.strip())
    for attribute in attributes.strip().split("."):
        found = getattr(found, attribute)
    return found


def _spell(error: BaseException) -> str:
    text = message_in_one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _names(classes: tuple[type, ...]) -> str:
    return ", ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)


@contextlib.contextmanager
def _ctrl_c_noted() -> Iterator[list[int]]:
    """Yield a list to which each arriving SIGINT is added. A KeyboardInterrupt alone is no proof of SIGINT: a plugin can raise it too.

    The list stays empty outside the main thread, or if SIGINT has no Python handler.
    """
    noted: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, previous)
