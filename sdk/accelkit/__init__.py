"""accelkit: a hardware plugin SDK for PyTorch. Importing it imports neither torch nor any plugin."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from accelkit.gc_pause import collector_paused

__version__ = "0.1.0"

_HOMES = {
    "accelkit.errors": (
        "AccelkitError", "AmbiguousError", "BrokenPluginError", "CheckpointError", "CollectiveError", "ContradictionError", "DevicesError",
        "DisabledPluginError", "HookError", "IncompatiblePluginError", "NameConflictError", "UnknownPlacementError", "UntrustedFileError",
        "PluginError", "PrepareError", "RankFailedError", "UnavailableError", "UnknownArgumentError", "UnknownAttributeError",
        "UnknownNameError", "UnsupportedError", "UsageError",
    ),
    "accelkit.cpp_compiler": ("BuildError",),
    "accelkit.cpp_library": ("CppLibrary",),
    "accelkit.capabilities": ("Capabilities",),
    "accelkit.types": ("Availability", "PluginRecord"),
    "accelkit.job_types": ("Candidate", "ClusterDetection", "Decision", "RuntimeState"),
    "accelkit.specs.accelerator": ("Accelerator",),
    "accelkit.specs.cluster": ("ClusterEnvironment",),
    "accelkit.specs.device_parsing": ("parse_devices",),
    "accelkit.specs.engine_strategy": ("EngineSettings", "EngineStrategy"),
    "accelkit.specs.hooks": ("hookimpl",),
    "accelkit.specs.precision": ("Precision",),
    "accelkit.specs.process_group": ("ProcessGroupOptions",),
    "accelkit.specs.strategy": ("Strategy",),
    "accelkit.specs.env_reader": ("port_for_job",),
    "accelkit.device_mesh": ("make_mesh",),
    "accelkit.pytree": ("tree_map",),
    "accelkit.private_files": ("check_private", "private_folder"),
    "accelkit.rank_logger": ("get_logger",),
    "accelkit.thread_shutdown": ("wait_for_torch_threads",),
    "accelkit.discovery.catalog": ("plugins", "refresh", "register"),
    "accelkit.selection": ("select",),
    "accelkit.runtime": ("Runtime",),
    "accelkit.runtime.device": ("device",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604 # strings, computed


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise _missing(name)
    with collector_paused():
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _missing(name: str) -> Exception:
    """Return the error to raise for a name that is not an attribute of accelkit, such as a submodule that has not been imported."""
    path = os.path.join(__path__[0], name)
    if os.path.exists(f"{path}.py") or os.path.isdir(path):
        return AttributeError(f"module {__name__!r} has no attribute {name!r} yet: it is a module that has not been imported")
    from accelkit.peer_names import missing_attribute  # imported only for the error, because importing accelkit must be quick

    error = missing_attribute("accelkit", name)
    if error is not None and sys._getframe(2).f_code.co_name == "_handle_fromlist":
        return ImportError(str(error), name=__name__)  # `from accelkit import NAME` would replace an AttributeError and lose its text
    return error or AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from accelkit.capabilities import Capabilities as Capabilities
    from accelkit.cpp_compiler import BuildError as BuildError
    from accelkit.cpp_library import CppLibrary as CppLibrary
    from accelkit.device_mesh import make_mesh as make_mesh
    from accelkit.discovery.catalog import plugins as plugins
    from accelkit.discovery.catalog import refresh as refresh
    from accelkit.discovery.catalog import register as register
    from accelkit.errors import AccelkitError as AccelkitError
    from accelkit.errors import AmbiguousError as AmbiguousError
    from accelkit.errors import BrokenPluginError as BrokenPluginError
    from accelkit.errors import CheckpointError as CheckpointError
    from accelkit.errors import CollectiveError as CollectiveError
    from accelkit.errors import ContradictionError as ContradictionError
    from accelkit.errors import DevicesError as DevicesError
    from accelkit.errors import DisabledPluginError as DisabledPluginError
    from accelkit.errors import HookError as HookError
    from accelkit.errors import IncompatiblePluginError as IncompatiblePluginError
    from accelkit.errors import NameConflictError as NameConflictError
    from accelkit.errors import PluginError as PluginError
    from accelkit.errors import PrepareError as PrepareError
    from accelkit.errors import RankFailedError as RankFailedError
    from accelkit.errors import UnavailableError as UnavailableError
    from accelkit.errors import UnknownArgumentError as UnknownArgumentError
    from accelkit.errors import UnknownAttributeError as UnknownAttributeError
    from accelkit.errors import UnknownNameError as UnknownNameError
    from accelkit.errors import UnknownPlacementError as UnknownPlacementError
    from accelkit.errors import UnsupportedError as UnsupportedError
    from accelkit.errors import UntrustedFileError as UntrustedFileError
    from accelkit.errors import UsageError as UsageError
    from accelkit.job_types import Candidate as Candidate
    from accelkit.job_types import ClusterDetection as ClusterDetection
    from accelkit.job_types import Decision as Decision
    from accelkit.job_types import RuntimeState as RuntimeState
    from accelkit.private_files import check_private as check_private
    from accelkit.private_files import private_folder as private_folder
    from accelkit.pytree import tree_map as tree_map
    from accelkit.rank_logger import get_logger as get_logger
    from accelkit.runtime import Runtime as Runtime
    from accelkit.runtime.device import device as device
    from accelkit.selection import select as select
    from accelkit.specs.accelerator import Accelerator as Accelerator
    from accelkit.specs.cluster import ClusterEnvironment as ClusterEnvironment
    from accelkit.specs.device_parsing import parse_devices as parse_devices
    from accelkit.specs.engine_strategy import EngineSettings as EngineSettings
    from accelkit.specs.engine_strategy import EngineStrategy as EngineStrategy
    from accelkit.specs.env_reader import port_for_job as port_for_job
    from accelkit.specs.hooks import hookimpl as hookimpl
    from accelkit.specs.precision import Precision as Precision
    from accelkit.specs.process_group import ProcessGroupOptions as ProcessGroupOptions
    from accelkit.specs.strategy import Strategy as Strategy
    from accelkit.thread_shutdown import wait_for_torch_threads as wait_for_torch_threads
    from accelkit.types import Availability as Availability
    from accelkit.types import PluginRecord as PluginRecord
