"""Batches on their way to the device: what copies alone reach, and whether a loader hides them behind computing.

First, nothing is computed: how long batches of 64 MiB take from pinned memory (where the device has that), by copies alone, which is
the bandwidth of copies, and through loaders. Then each batch is computed on for about as long as its copy takes: a loader that copies
ahead takes the longer of the two, one that does not takes both. The dataset returns tensors that are there already, so that reading
costs next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import peers
import torch
from measuring import Measure, compare, make_parser, report
from torch.utils.data import DataLoader

import accelkit

MIB = 1 << 20
BATCHES = 16
SIDE = 1024  # of the matrices that are computed with


class Copies:
    """Batches in the host's memory, and every way to the device.

    Args:
        accelerator: Its name.
        mib: Of a batch.
    """

    def __init__(self, accelerator: str, mib: int) -> None:
        self.name, self.runtime = accelerator, accelkit.Runtime(accelerator)
        self.device = self.runtime.device
        self.is_pinned = self.runtime.accelerator.capabilities(self.device).can("pinned_memory")
        batch = torch.ones(mib * MIB // 4)
        self.host = [batch.clone().pin_memory() if self.is_pinned else batch.clone() for _ in range(4)]
        self.there = batch.to(self.device, copy=True)
        self.matrix = torch.ones(SIDE, SIDE, device=self.device)
        self.products = 0

    def loader(self) -> DataLoader[Any]:
        """Of batches that are made already: nothing is collated."""
        return DataLoader([self.host[number % len(self.host)] for number in range(BATCHES)], batch_size=None)

    def loaders(self) -> dict[str, Iterable[torch.Tensor]]:
        """By contestant; each is iterated anew every round."""
        return {
            "raw loop": _Moved(self.loader(), self.device),
            "accelkit": self.runtime.prepare(self.loader()),
            "Fabric": peers.fabric(self.name).setup_dataloaders(self.loader()),
            "Accelerate": peers.accelerate(self.name).prepare(self.loader()),
        }

    def compute(self) -> None:
        for _ in range(self.products):
            self.matrix @ self.matrix

    def seconds(self, work: Callable[[], object]) -> float:
        """Until the device has done it."""
        synchronize = self.runtime.accelerator.synchronize
        synchronize(self.device)
        start = time.perf_counter()
        work()
        synchronize(self.device)
        return time.perf_counter() - start

    def copy_all(self) -> None:
        """One copy after the other, into memory that is there: the bandwidth of copies."""
        for number in range(BATCHES):
            self.there.copy_(self.host[number % len(self.host)], non_blocking=True)

    def compute_all(self) -> None:
        for _ in range(BATCHES):
            self.compute()

    def use_all(self, batches: Iterable[torch.Tensor]) -> None:
        """As a training loop does: touch each batch, and compute."""
        for batch in batches:
            batch[:1].add_(1)
            self.compute()

    def calibrate(self) -> None:
        """Make computing take as long as copying."""
        self.products = 8
        self.seconds(self.compute_all)
        one = self.seconds(self.compute_all) / BATCHES / self.products
        self.seconds(self.copy_all)
        self.products = max(1, round(self.seconds(self.copy_all) / BATCHES / one))

    def milliseconds_per_batch(self, work: Callable[[], object]) -> float:
        return self.seconds(work) / BATCHES * 1e3


class _Moved:
    """What a loop without a library does."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self.loader:
            yield batch.to(self.device, non_blocking=True)


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0], rounds=9, accelerator="fake_xpu")
    parser.add_argument("--mib", type=int, default=64, help="of a batch")
    options = parser.parse_args()
    copies = Copies(options.accelerator, options.mib)
    loaders = copies.loaders()

    def measure(name: str) -> Measure:
        return lambda: copies.milliseconds_per_batch(lambda: copies.use_all(loaders[name]))

    title = f"batches of {options.mib} MiB from {'pinned' if copies.is_pinned else 'pageable'} memory"
    alone: dict[str, Measure | str] = {"copies alone": lambda: copies.milliseconds_per_batch(copies.copy_all)}
    moving = alone | {name: measure(name) for name in loaders}
    tables = [compare(title, "ms of wall time a batch", moving, options.rounds, options.seconds)]
    copies.calibrate()
    alone["computing alone"] = lambda: copies.milliseconds_per_batch(copies.compute_all)
    computing = alone | {name: measure(name) for name in loaders}
    tables.append(compare(f"{title}, each computed on", "ms of wall time a batch", computing, options.rounds, options.seconds))
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
