"""Plugins that torch itself loads. ``import torch`` imports every ``torch.backends`` entry point, and fails if an entry point fails.

The environment variable TORCH_DEVICE_BACKEND_AUTOLOAD can disable the import of these entry points.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from accelkit.discovery import device_table
from accelkit.discovery.catalog import inventory
from accelkit.discovery.loading import describe
from accelkit.discovery.metadata import TorchBackend
from accelkit.discovery.policy import Policy
from accelkit.errors import BrokenPluginError

VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def is_enabled() -> bool:
    """Return whether ``import torch`` will import the ``torch.backends`` entry points.

    The import is enabled if TORCH_DEVICE_BACKEND_AUTOLOAD is unset or 1.
    """
    return os.environ.get(VARIABLE, "1") == "1"


def privateuse1_conflict() -> str:
    """Return a sentence that names the plugins in conflict over PrivateUse1 and says how to resolve the conflict.

    Reads metadata only. Returns "" if there is no conflict. Two or more plugins conflict if all of them claim PrivateUse1. There is never a
    conflict while TORCH_DEVICE_BACKEND_AUTOLOAD disables the import of ``torch.backends`` entry points.
    """
    claimants = [backend for backend in inventory().torch_backends if _is_privateuse1(backend)]
    names = sorted({backend.plugin for backend in claimants})
    if len(names) < 2 or not is_enabled():
        return ""
    claim = f"{' and '.join(names)} {'both' if len(names) == 2 else 'all'} claim PrivateUse1"
    return f"{claim}, which is torch's only slot for out-of-tree devices: {way_out([backend.distribution for backend in claimants])}"


def backend_of(device_type: str) -> str:
    """Return the value, such as ``torch_npu:_autoload``, of the ``torch.backends`` entry point for a device type. Imports nothing.

    An entry point is for a device type if its name, its module or the module's top-level package is ``<device_type>``,
    ``torch_<device_type>`` or the package that ``known_devices.py`` lists for the device type.

    The result is "" if there is no such entry point, or if ``ACCELKIT_PLUGINS`` does not allow its distribution.
    """
    policy = Policy.from_environment()
    names = {device_type, f"torch_{device_type}"}
    names |= {str(row.get("torch_package")) for row in device_table.vendors().values() if row["device_type"] == device_type}
    for backend in inventory().torch_backends:
        module = backend.value.partition(":")[0].strip()
        if names & {backend.name, module, module.partition(".")[0]} and not policy.objection(backend.distribution):
            return backend.value
    return ""


def way_out(distributions: Sequence[str]) -> str:
    """Return what to do if the backends of these distributions make ``import torch`` fail."""
    names = " ".join(sorted(set(distributions))) or "the package"
    return f"export {VARIABLE}=0 (torch then imports no backend by itself), or pip uninstall {names}"


def explain(error: BaseException) -> BrokenPluginError:
    """Return the error to raise if ``import torch`` raised ``error``.

    The returned error names the cause, a remedy and, if known, the faulty backend.
    """
    text = str(error)
    if unreadable := inventory().unreadable:
        names = " ".join(unreadable)
        hint = f"pip install --force-reinstall {names}, or export {VARIABLE}=0"
        return BrokenPluginError("import torch failed", plugin=names, why=f"{describe(error)}, in its entry_points.txt", hint=hint)
    failed = [backend for backend in inventory().torch_backends if backend.name in text or backend.value in text]
    plugin = ", ".join(backend.plugin for backend in failed)
    hint = (
        way_out([backend.distribution for backend in failed]) if failed else "reinstall torch; python -c 'import torch' shows the traceback"
    )
    return BrokenPluginError("import torch failed", plugin=plugin, why=describe(error), hint=hint)


def import_torch() -> None:
    """Import torch. Does not initialise a driver unless the import of a backend does.

    Raises:
        BrokenPluginError: If the import fails. The error names the root cause, a remedy and, if known, the backend that failed.
    """
    if "torch" in sys.modules:
        return
    with _autoload_that_can_work():
        try:
            import torch  # noqa: F401
        except Exception as error:
            raise explain(error) from error


@contextlib.contextmanager
def _autoload_that_can_work() -> Iterator[None]:
    """Inside the ``with`` block, switch off torch's autoload if the ``entry_points.txt`` of an installed package cannot be decoded.

    The autoload would read this file and make ``import torch`` fail. A warning names the packages that have such a file.
    """
    unreadable = inventory().unreadable
    if not unreadable or not is_enabled():
        yield
        return
    names = ", ".join(unreadable)
    text = f"torch does not load its backends, because the entry points of {names} cannot be decoded. pip install --force-reinstall {names}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _is_privateuse1(backend: TorchBackend) -> bool:
    """Return whether a backend claims PrivateUse1. If ``known_devices.py`` does not list the backend's package, the result is True."""
    package = backend.value.partition(":")[0].partition(".")[0]
    rows = [row for row in device_table.vendors().values() if str(row.get("torch_package", "")).partition(".")[0] == package]
    return all(bool(row.get("is_privateuse1", True)) for row in rows)
