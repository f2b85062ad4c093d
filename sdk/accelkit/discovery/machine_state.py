"""A digest of the state that decides whether a device is present. Computing it takes much less time than a probe in a child process.

The digest changes if the machine is restarted; if a device file, a PCI device or a driver appears or disappears; if the owner or the
permissions of a device file change; if a package or system library is installed; if an environment variable changes, except for a few such
as PWD and RANK; and if the user or the user's groups change. The processes that a launcher starts on a machine therefore have the same
digest, unless the launcher gives them different devices. The digest does not cover everything on which a device depends: it does not
change, for example, if a server on the network starts or stops. Results that are cached with a digest must therefore also expire.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_DEVICE_FOLDERS = ("/dev", "/dev/dri", "/dev/accel", "/dev/infiniband", "/dev/vfio")
_LIBRARY_CACHE = "/etc/ld.so.cache"
_PCI_DEVICES = "/sys/bus/pci/devices"
_OF_SHELLS = {"_", "OLDPWD", "PWD", "SHLVL"}
_OF_PROCESSES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "CROSS_RANK", "TORCHELASTIC_ERROR_FILE"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "OMPI_MCA_ess_base_vpid", "PMIX_RANK"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    *("PMI_RANK", "PMI_LOCAL_RANK", "PMI_FD", "PMI_ID", "MPI_LOCALRANKID", "PALS_RANKID", "PALS_LOCAL_RANKID"),
}
_OF_RUNS = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "ACCELKIT_JOB_SECRET"}
_IRRELEVANT = _OF_SHELLS | _OF_PROCESSES | _OF_RUNS
"""Environment variables that differ between shells, between the processes of a job, or between two runs of a launcher.

The ID of a scheduler's job or step, such as SLURM_JOB_ID, is not among them, because the scheduler may give each job and each step access
to different devices.
"""


def digest() -> str | None:
    """Return a digest of the machine's state, or None if the boot ID cannot be read, as on systems other than Linux.

    No device file is opened and no driver is initialised: the digest is computed from the boot ID, the list of kernel modules, the user and
    group IDs, the environment variables except those in ``_IRRELEVANT``, and the names, links and metadata of files.
    """
    import hashlib  # slow to import, and not needed where only the verdicts of trials are read

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        return None
    state = hashlib.sha256(repr((boot, os.getuid(), os.getgroups())).encode())
    for part in (_variables(), _device_files(), _pci_devices(), _kernel_modules(), installations()):
        for line in part:
            state.update(line.encode("utf-8", "surrogateescape") + b"\0")
    return state.hexdigest()


def _variables() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        if name not in _IRRELEVANT:
            yield f"{name}={value}"


def _device_files() -> Iterator[str]:
    for folder in _DEVICE_FOLDERS:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield f"{entry.path} {status.st_mode} {status.st_uid} {status.st_gid} {status.st_rdev}"


def _pci_devices() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(_PCI_DEVICES)):
            driver = ""
            with contextlib.suppress(OSError):  # the device has no driver
                driver = os.readlink(f"{_PCI_DEVICES}/{name}/driver")
            yield f"{name} {driver}"


def _kernel_modules() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from sorted(line.split()[0] for line in Path("/proc/modules").read_text("utf-8").splitlines())


def installations() -> Iterator[str]:
    """Yield the path and the modification time of the linker's cache, each package folder, and each folder in LD_LIBRARY_PATH.

    Package folders are the folders in ``sys.path`` that are named ``site-packages`` or ``dist-packages``. The other folders in ``sys.path``
    are ignored, because they include the script's folder, which changes whenever the program writes a file into it.
    """
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for path in (*packages, *filter(None, libraries), _LIBRARY_CACHE):
        with contextlib.suppress(OSError):
            yield f"{path} {os.stat(path).st_mtime_ns}"
