"""What each rank does in test_strategies.py.

``uneven_batches_program.py ACCELERATOR``: different numbers of batches, of each kind of loader.
"""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import accelkit

SAMPLES = torch.arange(5.0)[:, None]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(SAMPLES)


def sizes(loader, model, optimizer, rt):
    found = []
    for batch in loader:
        inputs = batch[0] if isinstance(batch, list) else batch
        rt.backward(model(inputs).sum())
        optimizer.step()
        optimizer.zero_grad()
        found.append(len(inputs))
    return found


def joined(rt, make, filled):
    """``filled``: the sizes of each rank's batches where the last ones are filled."""
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), make())
    mine = [[2, 1], [2]][rt.process_index]
    with rt.join_uneven_inputs([model], even_batches=False):
        assert sizes(loader, model, optimizer, rt) == mine
    assert sizes(loader, model, optimizer, rt) == filled, "filled again"
    with rt.join_uneven_inputs([model]):
        assert sizes(loader, model, optimizer, rt) == filled
    rt.free_memory()


def refused(rt):
    """What cannot be reached any more is said."""
    model = rt.prepare(torch.nn.Linear(1, 1))
    loader = rt.prepare(DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True))
    with rt.join_uneven_inputs([model], even_batches=True):
        assert len(list(loader)) == 2
    with pytest.warns(UserWarning, match="does not reach the workers") as caught, rt.join_uneven_inputs([model], even_batches=False):
        pass
    assert caught[0].filename == __file__


for dispatch in (None, True, False):
    rt = accelkit.Runtime(sys.argv[1], strategy="ddp", dispatch_batches=dispatch)
    joined(rt, lambda: DataLoader(TensorDataset(SAMPLES), batch_size=2), [2, 2])
    joined(rt, lambda: DataLoader(Stream(), batch_size=2), [2, 2] if dispatch is False else [2, 1])
    if dispatch is False:
        refused(rt)
    rt.teardown()
print("done")
