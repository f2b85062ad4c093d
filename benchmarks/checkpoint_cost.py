"""Time to save and load 1 GiB of weights: accelkit, Fabric, Accelerate and torch.save, compared with a plain write or read of the bytes.

By default, the weights are on the CPU. On another accelerator, saving copies them to the host, and loading copies them back to the device.
The time of each save includes an fsync. For an asynchronous save, only the time until the call returns is measured. Loading reads files
that are still in the page cache. The files are written to ``--folder``.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import peers
import torch
from measuring import Measure, compare, make_parser, report

import accelkit

GIB = 1 << 30
PARTS = 16


def make_model(mib: int) -> torch.nn.Module:
    """Return a model with ``mib`` MiB of float32 weights, in 16 parameters."""
    torch.manual_seed(0)
    numbers = mib * (1 << 20) // 4 // PARTS
    return torch.nn.ParameterList([torch.nn.Parameter(torch.randn(numbers)) for _ in range(PARTS)])


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def sync_all(path: Path) -> None:
    """Call fsync on every file in ``path``. accelkit does this itself; the other contestants leave it to the operating system."""
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Contest:
    """The contestants. Each saves the same weights to its own folder, which is emptied first."""

    def __init__(self, folder: Path, mib: int, accelerator: str) -> None:
        self.folder = folder
        self.model = make_model(mib)
        self.runtime = accelkit.Runtime(accelerator)
        self.runtime.prepare(self.model)
        self.fabric = peers.fabric(accelerator)
        self.accelerator = peers.accelerate(accelerator)
        self.accelerator.prepare(self.model)

    def place(self, name: str) -> Path:
        """Return a new, empty folder, once everything that was saved earlier has been written to disk."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        os.sync()
        return path

    def plain_write(self) -> float:
        file = self.place("plain") / "weights"
        return seconds(functools.partial(self._write, file))

    def _write(self, file: Path) -> None:
        with file.open("wb", buffering=0) as target:
            for parameter in self.model.parameters():
                left = memoryview(parameter.detach().cpu().numpy()).cast("B")
                while left:
                    left = left[target.write(left) :]
            os.fsync(target.fileno())

    def with_torch(self) -> float:
        path = self.place("torch") / "weights"
        return seconds(lambda: (torch.save(self.model.state_dict(), path), sync_all(path)))

    def with_accelkit(self) -> float:
        path = self.place("accelkit")
        return seconds(lambda: self.runtime.save_state(path))

    def with_fabric(self) -> float:
        path = self.place("fabric") / "weights"
        return seconds(lambda: (self.fabric.save(path, {"model": self.model}), sync_all(path)))

    def with_accelerate(self) -> float:
        path = self.place("accelerate")
        return seconds(lambda: (self.accelerator.save_state(str(path)), sync_all(path)))

    def copy(self) -> float:
        return seconds(lambda: [parameter.detach().to("cpu", copy=True) for parameter in self.model.parameters()])

    def blocked_by_accelkit(self) -> float:
        """Return the seconds until ``save_state(is_async=True)`` returns."""
        path = self.place("asynchronous")
        taken = seconds(lambda: self.runtime.save_state(path, is_async=True))
        self.runtime.wait_for_saves()
        return taken

    def plain_read(self) -> float:
        file = self.folder / "plain" / "weights"
        buffer = bytearray(file.stat().st_size)

        def read() -> None:
            with file.open("rb", buffering=0) as source:
                left = memoryview(buffer)
                while left:
                    left = left[source.readinto(left) :]

        return seconds(read)

    def load_with_torch(self) -> float:
        path = self.folder / "torch" / "weights"
        return seconds(lambda: self.model.load_state_dict(torch.load(path, weights_only=True)))

    def load_with_accelkit(self) -> float:
        return seconds(lambda: self.runtime.load_state(self.folder / "accelkit"))

    def load_lazily(self) -> float:
        """Return the seconds until ``load_state(verify="lazy")`` returns.

        Then wait for the threads that verify the checkpoint, so that they do not slow down the next measurement.
        """
        taken = seconds(lambda: self.runtime.load_state(self.folder / "accelkit", verify="lazy"))
        self.runtime.get_state_dict(self.model)
        return taken

    def load_lazily_to_the_end(self) -> float:
        """Return the seconds until ``load_state(verify="lazy")`` has returned and everything is verified, as a forward pass requires."""

        def load() -> None:
            self.runtime.load_state(self.folder / "accelkit", verify="lazy")
            self.runtime.get_state_dict(self.model)

        return seconds(load)

    def load_with_fabric(self) -> float:
        return seconds(lambda: self.fabric.load(self.folder / "fabric" / "weights", {"model": self.model}))

    def load_with_accelerate(self) -> float:
        return seconds(lambda: self.accelerator.load_state(str(self.folder / "accelerate")))


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0], rounds=7, accelerator="cpu")
    parser.add_argument("--mib", type=int, default=GIB >> 20)
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure; by default, the folder for temporary files")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        contest = Contest(Path(folder), options.mib, options.accelerator)
        saving: dict[str, Measure | str] = {
            "plain write and fsync": contest.plain_write,
            "accelkit": contest.with_accelkit,
            "torch.save": contest.with_torch,
            "Fabric": contest.with_fabric,
            "Accelerate": contest.with_accelerate,
        }
        asynchronous: dict[str, Measure | str] = {"a copy in memory": contest.copy, "accelkit": contest.blocked_by_accelkit}
        loading: dict[str, Measure | str] = {
            "plain read": contest.plain_read,
            "accelkit": contest.load_with_accelkit,
            'accelkit, verify="lazy"': contest.load_lazily,
            "  until it is verified": contest.load_lazily_to_the_end,
            "torch.load": contest.load_with_torch,
            "Fabric": contest.load_with_fabric,
            "Accelerate": contest.load_with_accelerate,
        }
        size = f"{options.mib} MiB"
        tables = [
            compare(f"saving {size}", "s", saving, options.rounds, options.seconds),
            compare(
                f"time for which an asynchronous save of {size} blocks the program", "s", asynchronous, options.rounds, options.seconds
            ),
            compare(f"loading {size}", "s", loading, options.rounds, options.seconds),
        ]
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
