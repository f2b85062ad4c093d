"""Making DeepSpeed use a plugin's device.

While DeepSpeed is being imported, its modules call ``get_accelerator()`` and keep some of the results. The plugin's accelerator must
therefore be set during the import, as soon as the module that defines ``get_accelerator()`` has been executed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accelkit.errors import ContradictionError, UnavailableError, UnsupportedError
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overrides

if TYPE_CHECKING:
    from accelkit.runtime import Runtime

_MODULE = "deepspeed.accelerator.real_accelerator"
"""DeepSpeed's module that holds the accelerator of the process."""

_FOR_INFERENCE = "deepspeed_shm_comm"


def install(name: str | Accelerator | None = None) -> Runtime:
    """Make DeepSpeed use a plugin's device, in a program that calls ``deepspeed.initialize`` itself. Imports deepspeed.

    Immediately selects, loads and checks the device, and joins the process group of the job. Call ``install`` on every process, before the
    program imports deepspeed. DeepSpeed keeps its own accelerator for a device type that it knows.

    Args:
        name: The argument ``accelerator`` of ``Runtime``.

    Returns:
        The Runtime for the device. Its ``decision`` contains the reasons why this accelerator was selected.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
        ContradictionError: If DeepSpeed already uses another device in this process.
        UnsupportedError: If DeepSpeed cannot use the device, or if accelkit does not support the installed version of DeepSpeed.
        AccelkitError: If Runtime cannot select or start the device, or cannot join the process group.
    """
    from accelkit.runtime import Runtime

    known_device_types()  # raises an error if DeepSpeed is not installed, before this process joins the process group
    runtime = Runtime(name, strategy="ddp")  # ddp creates a process group even for one process, as DeepSpeed does
    check_accelerator(runtime.accelerator)
    set_accelerator(runtime.accelerator)
    _ = runtime.device  # starts the device
    return runtime


def known_device_types() -> list[str]:
    """Return the device types for which DeepSpeed has an accelerator of its own. Does not import DeepSpeed.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
    """
    specification = importlib.util.find_spec("deepspeed")
    if specification is None or not specification.submodule_search_locations:
        raise UnavailableError(
            "the bridge to DeepSpeed needs the package deepspeed", why="it is not installed", hint="pip install 'accelkit[deepspeed]'"
        )
    folder = Path(next(iter(specification.submodule_search_locations))) / "accelerator"
    names = {path.name.removesuffix("_accelerator.py") for path in folder.glob("*_accelerator.py")}
    return sorted(names - {"abstract", "real"})


def check_accelerator(accelerator: Accelerator) -> None:
    """Check that DeepSpeed knows the device type of an accelerator, or can use the device through the bridge.

    Does not import DeepSpeed.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
        UnsupportedError: If DeepSpeed does not know the device type and the accelerator overrides ``step_end``. An override means that the
            device traces lazily and must be told when a step ends, but DeepSpeed does not do this.
    """
    if accelerator.device_type not in known_device_types() and overrides(accelerator, Accelerator, "step_end"):
        raise UnsupportedError(
            f"the bridge to DeepSpeed does not support {accelerator.name}",
            plugin=accelerator.plugin,
            why="the device traces lazily, and DeepSpeed does not mark the end of steps",
            hint="use another strategy, such as 'fsdp'",
        )


def set_accelerator(accelerator: Accelerator) -> Any:
    """Import DeepSpeed, make it use the device of ``accelerator``, and return DeepSpeed's accelerator for this device.

    ``accelerator`` must be loaded. The result is a PluginAccelerator, unless DeepSpeed has an accelerator of its own for the device type,
    or the program has already given DeepSpeed another accelerator for the same device type.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
        ContradictionError: If DeepSpeed already uses another device type in this process.
        UnsupportedError: If accelkit does not support the installed version of DeepSpeed.
    """
    set_accelerator_on_import(accelerator)
    importlib.import_module("deepspeed")
    wanted = accelerator.device_type
    used: Any = sys.modules[_MODULE].get_accelerator()
    if used.device_name() != wanted:
        early = (
            f"set DS_ACCELERATOR={wanted}"
            if wanted in known_device_types()
            else f"call accelkit.bridges.deepspeed.install({accelerator.name!r}) first"
        )
        raise ContradictionError(
            f"DeepSpeed uses {used.device_name()} in this process, but the Runtime uses {wanted}",
            why="the program imported deepspeed earlier, and DeepSpeed chose a device by itself",
            hint=f"{early}, or import deepspeed after the model is prepared",
        )
    return used


def set_accelerator_on_import(accelerator: str | Accelerator) -> None:
    """Make DeepSpeed use the device of ``accelerator`` when this process imports DeepSpeed.

    Also makes ``deepspeed.initialize`` move a model from the CPU to the device without replacing its Parameter objects. Does nothing if
    DeepSpeed was imported already, or has an accelerator of its own for the device type.

    Args:
        accelerator: A loaded accelerator, or the name of an accelerator. Given a name, this function selects the accelerator in the same
            way as ``Runtime``, and loads it.

    Raises:
        UnavailableError: If DeepSpeed is not installed, or the accelerator cannot be used.
        AccelkitError: If the accelerator cannot be selected or loaded.
    """
    if isinstance(accelerator, str):
        accelerator = _loaded(accelerator)
    if "deepspeed" in sys.modules or accelerator.device_type in known_device_types():
        return

    def use_plugin(module: Any) -> None:
        module.set_accelerator(_plugin_accelerator(accelerator))

    def keep_parameters(module: Any) -> None:
        sys.meta_path.remove(finder)
        module.initialize = _keeping_parameters(module.initialize, accelerator)

    finder = _Finder({_MODULE: use_plugin, "deepspeed": keep_parameters})
    sys.meta_path[:] = [finder, *(other for other in sys.meta_path if not isinstance(other, _Finder))]


def unset_accelerator_on_import() -> None:
    """Undo ``set_accelerator_on_import``. This has no effect on DeepSpeed if it has already been imported."""
    sys.meta_path[:] = [other for other in sys.meta_path if not isinstance(other, _Finder)]


def _loaded(name: str) -> Accelerator:
    from accelkit.discovery import loading
    from accelkit.selection import select

    accelerator: Accelerator = select(name).accelerator
    with loading.plugin_errors(accelerator.plugin, f"loading the accelerator {name}"):
        accelerator.load()
    return accelerator


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Inside the ``with`` block, keep ``deepspeed.initialize`` from compiling a CPU operator that only inference uses."""
    compatible = sys.modules["deepspeed"].ops.__compatible_ops__
    before = compatible.get(_FOR_INFERENCE, False)
    compatible[_FOR_INFERENCE] = False
    try:
        yield
    finally:
        compatible[_FOR_INFERENCE] = before


def _plugin_accelerator(accelerator: Accelerator) -> Any:
    from accelkit.bridges.deepspeed.plugin_accelerator import PluginAccelerator  # DeepSpeed's base class exists now

    if missing := sorted(PluginAccelerator.__abstractmethods__):
        raise UnsupportedError(
            "this version of accelkit does not support the installed version of deepspeed",
            why=f"DeepSpeed also asks for {', '.join(missing)} of a device",
            hint="install an earlier version of deepspeed, or a later one of accelkit",
        )
    return PluginAccelerator(accelerator)


def _keeping_parameters(initialize: Callable[..., Any], accelerator: Accelerator) -> Callable[..., Any]:
    """Return a function that moves a model from the CPU to the device, keeps the model's Parameter objects, and calls ``initialize``.

    DeepSpeed itself moves the model with ``Module.to``, which creates new Parameters on some devices. An optimizer that the program
    created earlier would then train the old Parameters. Models that ``deepspeed.zero.Init`` has partitioned are not moved.
    """
    from accelkit.bridges.parameter_swapping import keeping_parameters

    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        model: Any = signature.bind(*arguments, **named).arguments.get("model")
        parameters = [] if model is None else list(model.parameters())
        is_partitioned = any(hasattr(parameter, "ds_id") for parameter in parameters)  # by deepspeed.zero.Init
        if parameters and not is_partitioned and all(parameter.is_cpu for parameter in parameters):
            with keeping_parameters():
                model.to(accelerator.device(sys.modules[_MODULE].get_accelerator().current_device()))
        return initialize(*arguments, **named)

    return wrapped


class _Loader(SourceFileLoader):
    """An import loader that executes a module, and then calls a function with the module."""

    def __init__(self, name: str, path: str, then: Callable[[Any], None]) -> None:
        super().__init__(name, path)
        self._then = then

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._then(module)


class _Finder(MetaPathFinder):
    """An import finder for the modules whose names are keys of ``functions``.

    When the module ``name`` has been executed, ``functions[name]`` is called with the module.
    """

    def __init__(self, functions: Mapping[str, Callable[[Any], None]]) -> None:
        self._functions = functions

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in self._functions else None
        if found is not None and found.origin is not None:
            found.loader = _Loader(fullname, found.origin, self._functions[fullname])
        return found
