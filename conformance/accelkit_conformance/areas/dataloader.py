"""DataLoaders deliver the right samples with forked workers, with spawned workers, with pinned batches and with datasets on the device.
Using the device in a forked process either works or raises an error; it does not hang."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("training")
def workers_fork_after_use(subject: Subject) -> None:
    """Forked workers deliver every sample, in order, even after the device has been used in the main process."""
    import torch

    torch.ones(3, device=subject.device)
    dataset = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
    found = [value for (batch,) in loader for value in batch.to(subject.device).tolist()]
    assert found == list(range(40)), f"the batches have {found}"


@check("training", requires=["pinned_memory"])
def pinned_batches(subject: Subject) -> None:
    """With ``pin_memory=True``, the tensors of a batch are pinned, with and without a worker process. The batch may be a tensor, a
    ``PackedSequence`` or an object that has a method ``pin_memory``. It may also be a dict, list, tuple or named tuple that contains
    tensors or such objects, possibly nested. A pinned tensor and its copy on the device have the right values."""
    from accelkit_conformance.oracle.batches import check_pinned_batches

    check_pinned_batches(subject)


@check("training", requires=["pinned_memory"])
def kept_batches(subject: Subject) -> None:
    """With ``pin_memory=True``, later batches do not overwrite batches that the program keeps. In one pass, the program keeps all 40
    batches and copies each of them to the device. At the end of the pass, the batches and the copies have the right values, with and
    without a worker process.
    """
    from accelkit_conformance.oracle.batches import check_kept_batches

    check_kept_batches(subject)


@check("training")
def prepared_loaders_deliver(subject: Subject) -> None:
    """A loader prepared by a Runtime delivers every sample, in order, and all tensors in nested dicts, tuples and lists are on the
    device.
    """
    import torch

    runtime = subject.runtime()
    samples = [{"x": torch.full((2,), float(i)), "y": (torch.tensor(float(i)), [torch.tensor(float(i))])} for i in range(6)]
    loader = runtime.prepare(torch.utils.data.DataLoader(samples, batch_size=3))
    found = []
    for batch in loader:
        subject.assert_on_device(batch["x"], batch["y"][0], batch["y"][1][0])
        found += [batch["x"][:, 1].tolist(), batch["y"][0].tolist(), batch["y"][1][0].tolist()]
    assert found == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3, f"the batches have {found}"


@check("training")
def use_in_a_fork(subject: Subject) -> None:
    """In a child process that was forked after the device had been used, using the device works or raises RuntimeError. The child neither
    hangs nor crashes."""
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
    """A DataLoader with one worker process, started with ``spawn``, delivers every sample, in order. The samples have the right values
    after a copy to the device."""
    import torch

    dataset = torch.utils.data.TensorDataset(torch.arange(20.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=10, num_workers=1, multiprocessing_context="spawn")
    found = [value for (batch,) in loader for value in batch.to(subject.device).tolist()]
    assert found == list(range(20)), f"the batches have {found}"


@check("full", requires=["dtype.int64"])
def datasets_on_the_device(subject: Subject) -> None:
    """A DataLoader of a dataset whose tensors are on the device delivers each sample once, on the device. The two tensors of a sample stay
    together. A ``TensorDataset`` is read in order by default and with ``batch_size=None``. With shuffling, a random batch sampler, a
    reversed ``Subset`` or a ``random_split``, the ``TensorDataset`` is not read in order. A shuffled dataset of dicts is not read in order
    either."""
    from accelkit_conformance.oracle.batches import check_datasets_on_the_device

    check_datasets_on_the_device(subject)


@check("full", requires=["pinned_memory"])
def a_stream_of_pinned_batches(subject: Subject) -> None:
    """In a loop over pinned batches, with and without a worker process, each batch is copied to the device with ``non_blocking=True`` and
    is then freed on the host. The device is busy when the first batches are copied. All copies have the right values, even if later batches
    reuse the pinned memory."""
    from accelkit_conformance.oracle.batches import check_stream_of_batches

    check_stream_of_batches(subject)
