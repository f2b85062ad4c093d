"""Time to move batches to the device by plain copies and by loaders, and whether a loader overlaps copies with computation.

The first table is without computation. It shows how long it takes to move batches of 64 MiB from pinned memory (if the device supports it):
by plain copies, which show the bandwidth, and through loaders. In the second table, the device computes on each batch for about as long as
the copy of a batch takes. A loader that copies ahead takes the longer of the two times; any other loader takes their sum. The dataset
returns tensors that already exist, so that reading costs almost nothing.
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
SIDE = 1024  # of the square matrices that are multiplied


class Copies:
    """Batches in the host's memory, and every way to move them to the device.

    Args:
        accelerator: The name of the accelerator.
        mib: The size of a batch in MiB.
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
        """Return a loader of existing batches, which collates nothing."""
        return DataLoader([self.host[number % len(self.host)] for number in range(BATCHES)], batch_size=None)

    def loaders(self) -> dict[str, Iterable[torch.Tensor]]:
        """Return the loader of each contestant by its name. Each loader is iterated once per round."""
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
        """Return the seconds until the device has finished ``work``."""
        synchronize = self.runtime.accelerator.synchronize
        synchronize(self.device)
        start = time.perf_counter()
        work()
        synchronize(self.device)
        return time.perf_counter() - start

    def copy_all(self) -> None:
        """Copy all batches, one after the other, into existing memory of the device. Shows the bandwidth of copies."""
        for number in range(BATCHES):
            self.there.copy_(self.host[number % len(self.host)], non_blocking=True)

    def compute_all(self) -> None:
        for _ in range(BATCHES):
            self.compute()

    def use_all(self, batches: Iterable[torch.Tensor]) -> None:
        """Use each batch and compute, as a training loop does."""
        for batch in batches:
            batch[:1].add_(1)
            self.compute()

    def calibrate(self) -> None:
        """Choose the number of matrix products so that computing takes about as long as copying."""
        self.products = 8
        self.seconds(self.compute_all)
        one = self.seconds(self.compute_all) / BATCHES / self.products
        self.seconds(self.copy_all)
        self.products = max(1, round(self.seconds(self.copy_all) / BATCHES / one))

    def milliseconds_per_batch(self, work: Callable[[], object]) -> float:
        return self.seconds(work) / BATCHES * 1e3


class _Moved:
    """The batches of a loader, moved to the device as in a loop without a library."""

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
