"""Loaders feed the device: workers that fork or spawn, pinned batches, and a clear error for who uses the device in a fork."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("training")
def workers_fork_after_use(subject: Subject) -> None:
    """With the device in use, forked workers that make CPU tensors deliver every sample."""
    import torch

    torch.ones(3, device=subject.device)
    dataset = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2)
    total = sum(float(batch.to(subject.device).sum()) for (batch,) in loader)
    assert total == sum(range(40)), f"the batches sum to {total}, not {sum(range(40))}"


@check("training", requires=["pinned_memory"])
def pinned_batches(subject: Subject) -> None:
    """``pin_memory=True`` gives pinned batches, which arrive whole."""
    import torch

    dataset = torch.utils.data.TensorDataset(torch.arange(40.0))
    for (batch,) in torch.utils.data.DataLoader(dataset, batch_size=10, pin_memory=True):
        assert batch.is_pinned(), "a batch is not pinned"
        assert torch.equal(batch.to(subject.device, non_blocking=True).cpu(), batch)


@check("training")
def prepared_loaders_deliver(subject: Subject) -> None:
    """A loader that a Runtime prepared delivers batches on the device: tensors, tuples, dicts and lists."""
    import torch

    runtime = subject.runtime()
    samples = [{"x": torch.full((2,), float(i)), "y": (torch.tensor(i), [torch.tensor(float(i))])} for i in range(6)]
    loader = runtime.prepare(torch.utils.data.DataLoader(samples, batch_size=3))
    for batch in loader:
        subject.stays(batch["x"], batch["y"][0], batch["y"][1][0])


@check("training")
def use_in_a_fork(subject: Subject) -> None:
    """Using the device in a forked child works, or raises an error there; it neither hangs nor crashes."""
    import signal
    import time

    import torch

    torch.ones(3, device=subject.device)
    child = os.fork()
    if child == 0:
        try:
            torch.ones(3, device=subject.device).sum().item()
        except RuntimeError:
            os._exit(3)
        except BaseException:
            os._exit(4)
        os._exit(0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, 3), (
                f"the child crashed with {signal.Signals(-code).name}" if code < 0 else f"the child raised no RuntimeError ({code})"
            )
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hung")


@check("training", seconds=120)
def spawned_workers(subject: Subject) -> None:
    """Spawned workers, which import everything anew, deliver every sample."""
    import torch

    dataset = torch.utils.data.TensorDataset(torch.arange(20.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=10, num_workers=1, multiprocessing_context="spawn")
    assert sum(float(batch.to(subject.device).sum()) for (batch,) in loader) == sum(range(20))
