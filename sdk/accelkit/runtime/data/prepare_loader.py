"""Divide a loader among the processes of a job."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe

from accelkit.errors import PrepareError
from accelkit.runtime.data.dispatcher import DispatchedBatches
from accelkit.runtime.data.division import Division
from accelkit.runtime.data.loader_state import Epochs
from accelkit.runtime.data.loaders import PreparedLoader, batch_size_of
from accelkit.runtime.data.order_states import OrderStates
from accelkit.runtime.data.resume import in_order, index_sampler, reshaped
from accelkit.runtime.data.samplers import Order, ShardedBatches, ShardedDataset
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.strategy import Strategy


def prepare_loader(
    loader: DataLoader[Any],
    *,
    device: torch.device | None,
    num_processes: int,
    process_index: int,
    split_batches: bool,
    even_batches: bool,
    dispatch_batches: bool | None,
    rng_types: Sequence[str],
    accelerator: Accelerator,
    strategy: Strategy | None = None,
    number: int = 0,
    num_shares: int | None = None,
) -> PreparedLoader:
    """Return a loader that yields this process's share of ``loader`` on ``device``. The user's loader is not modified.

    Iterating over the returned loader is a collective of the default process group.

    Args:
        loader: The user's loader. If its sampler already divides the data (DistributedSampler and other samplers with
            ``num_replicas``), the loader is not divided again.
        device: The device to which batches are moved. None leaves them where they are.
        num_processes: The number of processes in the job, at least two.
        process_index: The rank of this process in the job.
        split_batches: Whether a batch of ``loader`` is divided among all processes of the job. Otherwise, each batch is for one process.
        even_batches: Whether to fill the last batches of an epoch with samples from its beginning, so that every process gets the same
            number of full batches.
        dispatch_batches: Whether only rank 0 reads the data and sends each process its share. None means True for iterable datasets, and
            False for other datasets.
        rng_types: The generators that are synchronised between processes before each epoch (see ``OrderStates``).
        accelerator: The accelerator that owns the device and its generator.
        strategy: The strategy that lays out batches on the device.
        number: The index of the loader among those that the Runtime prepared.
        num_shares: The number of shares into which the samples are divided. If there are fewer shares than processes, each share goes to
            several processes, whose ranks are consecutive. None means one share for each process.

    Raises:
        PrepareError: If the loader cannot be divided with these arguments.
    """
    shares = num_shares or num_processes
    processes_per_share = num_processes // shares
    is_shared = _divides_itself(loader)
    if is_shared and (split_batches or dispatch_batches):
        raise PrepareError(
            f"split_batches={split_batches} and dispatch_batches={dispatch_batches} cannot be used with this loader",
            why="its sampler already gives each process a share of the data",
            hint="remove the DistributedSampler, or omit both arguments",
        )
    if split_batches:
        check_split(loader, shares)
    even_batches = even_batches and shares > 1
    is_stream = isinstance(loader.dataset, IterableDataset)
    is_dispatched = is_stream if dispatch_batches is None else dispatch_batches
    division = Division(
        loader,
        num_processes=shares,
        process_index=process_index // processes_per_share,
        step=1 if split_batches or is_shared else shares,
        is_shared=is_shared,
        is_dispatched=is_dispatched,
        processes_per_share=processes_per_share,
    )
    if is_shared and processes_per_share > 1:
        _check_own_division(division)
    epochs = Epochs(division, OrderStates(division, rng_types=rng_types, accelerator=accelerator, device=device, number=number))
    divided: Any = loader
    if not is_shared:
        if is_stream:
            divided = _divided_stream(division, split_batches=split_batches, even_batches=even_batches)
        else:
            divided = _divided_batches(division, epochs.order, split_batches=split_batches, even_batches=even_batches)
        if is_dispatched:
            divided = DispatchedBatches(divided, shares, process_index, even_batches=even_batches, processes_per_share=processes_per_share)
    return PreparedLoader(divided, device, accelerator=accelerator, strategy=strategy, epochs=epochs)


def check_split(loader: DataLoader[Any], num_processes: int) -> None:
    """Check that ``split_batches`` can give each process an equal share of every full batch of a loader.

    Raises:
        PrepareError: If there are several processes, and the batch size is unknown or not a multiple of their number.
    """
    size = batch_size_of(loader)
    if num_processes > 1 and (size is None or size % num_processes):
        said = "of unknown size" if size is None else f"of {size}"
        raise PrepareError(
            f"a batch {said} cannot be split among {num_processes} processes",
            why="split_batches=True divides each batch",
            hint=f"use a batch size that is a multiple of {num_processes}, or split_batches=False",
        )


@contextlib.contextmanager
def filling(prepared: Sequence[PreparedLoader], even_batches: bool, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Run the ``with`` block inside the context manager ``inner``, with ``even_batches`` in place of the loaders' own setting of this name.

    The setting affects passes that begin inside the block. A loader whose own sampler divides the data is not affected.
    """
    parts = [part for loader in prepared for part in _parts_that_fill(loader.loader)]
    before = [part.even_batches for part in parts]
    for part in parts:
        part.even_batches = even_batches
    try:
        with inner:
            yield
    finally:
        for part, had_even_batches in zip(parts, before, strict=True):
            part.even_batches = had_even_batches


def warn_about_persistent_workers(prepared: Sequence[PreparedLoader]) -> None:
    """Warn about each loader whose persistent workers have started, because the context manager ``filling`` does not affect them.

    Each worker has a copy of the loader's ``ShardedDataset``. ``filling`` sets ``even_batches`` of the original, but not of the copies.
    """
    for loader in prepared:
        is_divided_by_workers = isinstance(loader.dataset, ShardedDataset)
        if is_divided_by_workers and loader.persistent_workers and loader._iterator is not None:
            warnings.warn(
                "join_uneven_inputs(even_batches=) does not reach the workers of a loader of an iterable dataset that was read before with "
                "persistent_workers=True",
                stacklevel=4,
            )


def _parts_that_fill(loader: Any) -> Iterator[Any]:
    if isinstance(loader, DispatchedBatches):
        yield loader
        yield from _parts_that_fill(loader.loader)
    elif isinstance(loader.dataset, ShardedDataset):
        yield loader.dataset
    elif isinstance(sampler := index_sampler(loader)[1], ShardedBatches):
        yield sampler


def _divides_itself(loader: DataLoader[Any]) -> bool:
    return bool(_dividing_samplers(loader)) or isinstance(loader.dataset, IterDataPipe)


def _dividing_samplers(loader: DataLoader[Any]) -> list[Any]:
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    replicas = [(sampler, getattr(sampler, "num_replicas", 1)) for sampler in samplers]
    return [sampler for sampler, number in replicas if isinstance(number, int) and number > 1]


def _check_own_division(division: Division) -> None:
    """Check that a loader whose own sampler or dataset divides the data gives each process the right share.

    Called only if there are fewer shares than processes, so that several processes must get the same share.

    Raises:
        PrepareError: If a sampler gives this process a different share, or if the dataset divides the data and no sampler does.
    """
    wanted = (division.num_processes, division.process_index)
    samplers = _dividing_samplers(division.loader)
    if samplers and all((sampler.num_replicas, getattr(sampler, "rank", None)) == wanted for sampler in samplers):
        return
    raise PrepareError(
        "the loader gives different samples to processes that must get the same ones",
        why="its sampler or dataset divides the data itself, "
        f"and each {division.processes_per_share} processes of this job compute on the same samples",
        hint="remove the DistributedSampler, or use DistributedSampler(dataset, rt.data_parallel_size, rt.data_parallel_index)",
    )


def _divided_batches(division: Division, order: Order, *, split_batches: bool, even_batches: bool) -> DataLoader[Any]:
    name, sampler = index_sampler(division.loader)
    shares = ShardedBatches(
        in_order(sampler, order),
        division.num_processes,
        None if division.is_dispatched else division.process_index,
        split_batches=split_batches,
        even_batches=even_batches,
        holds_lists=name == "batch_sampler" or isinstance(sampler, BatchSampler),
    )
    return reshaped(division.loader, **{name: shares})


def _divided_stream(division: Division, *, split_batches: bool, even_batches: bool) -> DataLoader[Any]:
    loader, num_processes = division.loader, division.num_processes
    share = loader.batch_size // num_processes if split_batches and loader.batch_size else loader.batch_size
    changes: dict[str, Any] = {}
    if not division.is_dispatched:
        changes["dataset"] = ShardedDataset(
            loader.dataset, num_processes, division.process_index, share or 1, even_batches=even_batches, drop_last=loader.drop_last
        )
    if split_batches:
        changes |= {"batch_size": share, "batch_sampler": BatchSampler(loader.sampler, share or 1, loader.drop_last)}
    return reshaped(loader, **changes)
