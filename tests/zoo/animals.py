"""The zoo: one distribution an animal, each broken in one way that vendors' packages are broken in, beside a healthy one.

To add an animal, add an entry to ``ANIMALS``.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

HEALTHY = """
from accelkit import Accelerator, Availability

class Animal(Accelerator):
    "An animal of the zoo."
    device_type = "cpu"
    is_simulated = True

    @classmethod
    def probe(cls):
        return Availability.usable("it is well")
"""


def with_probe(body: str, rest: str = "") -> str:
    return HEALTHY.replace('return Availability.usable("it is well")', body) + rest


def hook(method: str) -> str:
    return f"from accelkit import hookimpl\n\nclass Animal:\n    @hookimpl\n    def {method}:\n        pass\n"


@dataclasses.dataclass(frozen=True)
class Animal:
    """A hostile plugin.

    Attributes:
        name: Of the animal; the distribution is ``zoo-<name>``.
        reason: What its row and the error must say.
        source: Its module.
        hint: What its row and the error must advise.
        status: Of its row.
        kind, offered: What it offers, under which name (by default the animal's).
        requires: Its Requires-Dist.
        entry_points: The whole file, where it is not the ordinary one; written after installation, as no build tool would.
        tamper: What happened to its dist-info folder after it was installed.
        is_seen_unasked: Whether metadata alone shows the fault, so that ``accelkit list`` does before anybody asked it.
        selected_as: The name that a user would select, where it is not ``offered``.
    """

    name: str
    reason: str
    source: str = HEALTHY
    hint: str = "ACCELKIT_DISABLE_PLUGINS=zoo-"
    status: str = "broken"
    kind: str = "accelerator"
    offered: str = ""
    requires: tuple[str, ...] = ()
    entry_points: str = ""
    tamper: Callable[[Path], object] | None = None
    is_seen_unasked: bool = False
    selected_as: str = ""

    @property
    def distribution(self) -> str:
        return f"zoo-{self.name}"

    @property
    def module(self) -> str:
        return f"zoo_{self.name}"

    @property
    def row_name(self) -> str:
        return self.offered or self.module


def seen_unasked(name: str, reason: str, hint: str, **options: object) -> Animal:
    return Animal(name, reason, hint=hint, is_seen_unasked=True, **options)  # type: ignore[arg-type]


def duplicate(info: Path) -> None:
    shutil.copytree(info, info.with_name("zoo_twice-0.9.dist-info"))


def undecodable(info: Path) -> None:
    (info / "entry_points.txt").write_bytes(b"[accelkit.accelerators]\nzoo_bytes = zoo_bytes:Animal\xff\xfe\n")


REPAIR = "pip install --force-reinstall --no-deps zoo-"

ANIMALS = [
    # -- importing it -------------------------------------------------------------------------------------------------
    Animal("import", "ModuleNotFoundError: No module named 'sdk_of_the_vendor'", "import sdk_of_the_vendor\n"),
    Animal("library", "libvendor.so.7: cannot open shared object file", "import ctypes; ctypes.CDLL('libvendor.so.7')\n", "install the missing library"),
    Animal("segfault", "it crashed with SIGSEGV while it was being imported", "import ctypes; ctypes.string_at(0)\n"),
    Animal("abort", "it crashed with SIGABRT while it was being imported", "import os; os.abort()\n"),
    Animal("hang", "it exceeded the time limit of", "import time; time.sleep(3600)\n", "ACCELKIT_LOAD_TIMEOUT"),
    Animal("exit", "SystemExit: 3", "import sys; sys.exit(3)\n"),
    Animal("hardexit", "it ended the process with exit code 0 while it was being imported", "import os; os._exit(0)\n"),
    Animal("interrupt", "KeyboardInterrupt", "raise KeyboardInterrupt\n"),
    Animal("flood", "RuntimeError: after a flood", "import os; os.write(1, b'x' * 10**7); os.write(2, b'y' * 10**7)\nraise RuntimeError('after a flood')\n"),
    Animal("attribute", "has no attribute 'Animal'", "class Beast: pass\n"),
    # -- what importing it changes ------------------------------------------------------------------------------------
    Animal("thread", "it left a thread running (zoo-thread)", HEALTHY + "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), name='zoo-thread', daemon=True).start()\n", "move this code into load()"),
    Animal("environ", "it changed os.environ (OMP_NUM_THREADS)", HEALTHY + "import os; os.environ['OMP_NUM_THREADS'] = '999'\n", "move this code into load()"),
    Animal("patch", "it replaced torch.", HEALTHY + "import torch, functools\ntorch.matmul = functools.wraps(torch.matmul)(lambda *a: 0)\n", "move this code into load()"),
    Animal("signal", "it changed signal handlers (SIGTERM)", HEALTHY + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "move this code into load()"),
    # -- its class ----------------------------------------------------------------------------------------------------
    Animal("base", "a class whose bases are builtins.object", "class Animal:\n    device_type = 'cpu'\n", "must refer to a subclass of accelkit.Accelerator"),
    Animal("function", "zoo_function:Animal is function", "def Animal(): pass\n", "must refer to a subclass of accelkit.Accelerator"),
    Animal("init", "missing 1 required positional argument: 'board'", HEALTHY + "    def __init__(self, board): pass\n", "must work without arguments"),
    # -- its probe and what follows -----------------------------------------------------------------------------------
    Animal("raises", "RuntimeError: firmware 3 is too old", with_probe("raise RuntimeError('firmware 3 is too old')")),
    Animal("stuck", "it exceeded the time limit of", with_probe("import time; time.sleep(3600)"), "ACCELKIT_LOAD_TIMEOUT"),
    Animal("lies", "its probe() reports it as usable, but its check() failed: RuntimeError", HEALTHY.replace('"cpu"', '"zoodevice"'), "report it to the vendor"),
    Animal("wrong", "[0, 1, 2, 3] + 1 gave", HEALTHY + "    def check(self):\n        from accelkit import Availability\n        return Availability.broken('[0, 1, 2, 3] + 1 gave [0, 0, 0, 0]')\n", "report it to the vendor"),
    Animal("nonsense", "it returned True (bool)", with_probe("return True"), "must be a classmethod that returns accelkit.Availability"),
    Animal("load", "it crashed with SIGSEGV in load()", HEALTHY + "    def load(self):\n        import ctypes; ctypes.string_at(0)\n"),
    Animal("absent", "no card in any slot", with_probe("return Availability.absent('no card in any slot', 'insert a card')"), "insert a card", "unavailable"),
    # -- hooks --------------------------------------------------------------------------------------------------------
    Animal("misspelt", "implements an unknown hook", hook("checkpoint_savd(self, path)"), "did you mean 'checkpoint_saved'?", kind="hooks"),
    Animal("argument", "has an unknown argument 'pth'", hook("checkpoint_saved(self, pth)"), "did you mean 'path'?", kind="hooks"),
    # -- its metadata -------------------------------------------------------------------------------------------------
    seen_unasked("malformed", "is malformed; the expected form is module:Class", REPAIR, entry_points="[accelkit.accelerators]\nzoo_malformed = zoo_malformed Animal!\n"),
    seen_unasked("metadata", "METADATA is missing from zoo_metadata-1.0.dist-info", REPAIR, tamper=lambda info: (info / "METADATA").unlink()),
    seen_unasked("twice", "its metadata exists twice (zoo_twice-0.9.dist-info and zoo_twice-1.0.dist-info), because", "pip uninstall zoo-twice", tamper=duplicate),
    seen_unasked("bytes", "its entry_points.txt is not UTF-8", REPAIR, tamper=undecodable),
    seen_unasked("builtin", "the name cpu is reserved for accelkit", "ask the vendor to rename it", status="conflict", offered="cpu", selected_as="zoo-builtin:cpu"),
    seen_unasked("reserved", "the name gpu is reserved for accelkit", "ask the vendor to rename it", status="conflict", offered="gpu", selected_as="zoo-reserved:gpu"),
    seen_unasked("first", "zoo-first==1.0 and zoo-second==1.0 both claim the name zoo_contested", "zoo-first:zoo_contested", status="conflict", offered="zoo_contested"),
    seen_unasked("second", "zoo-first==1.0 and zoo-second==1.0 both claim the name zoo_contested", ":zoo_contested", status="conflict", offered="zoo_contested"),
    seen_unasked("future", "it requires accelkit>=99, but accelkit", "pip install 'accelkit>=99'", status="incompatible", requires=("accelkit>=99",)),
    seen_unasked("past", "it requires torch<2, but torch", "another version of the plugin", status="incompatible", requires=("torch<2",)),
    seen_unasked("escapes", "a name consists of letters, digits", REPAIR, offered="\x1b[31mzoo\x1b[0m", entry_points="[accelkit.accelerators]\n\x1b[31mzoo\x1b[0m = zoo_escapes:Animal\n"),
    seen_unasked("markup", "a name consists of letters, digits", REPAIR, offered="zoo[bold red]x[/]", entry_points="[accelkit.accelerators]\nzoo[bold red]x[/] = zoo_markup:Animal\n"),
]  # fmt: skip

CONTROL = Animal("healthy", "it is well", status="available")
