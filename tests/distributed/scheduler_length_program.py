"""What each rank does in test_scheduler_length.py: trains with a scheduler of some length, and prints the warnings that it got.

``scheduler_length_program.py CASE...``, each case a key of ``CASES``.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

import accelkit

BATCHES, EPOCHS = 12, 2


def loader(batches=BATCHES):
    return DataLoader(TensorDataset(torch.ones(batches, 1)))


def one_cycle(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)


def cosine(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def train(rt, *, make=one_cycle, length=None, data=None, from_prepared=False, steps_per="batch", epochs=EPOCHS):
    """Train, and return the last learning rate. ``length`` computes the scheduler's length from a loader."""
    data = data or loader()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unprepared = len(data)
    if from_prepared:
        data = rt.prepare(data)
    scheduler = make(optimizer, length(len(data) if from_prepared else unprepared))
    model, optimizer, scheduler, data = rt.prepare(model, optimizer, scheduler, data)
    for _ in range(epochs):
        for (batch,) in data:
            with rt.accumulate(model):
                rt.backward(model(batch).mean())
                optimizer.step()
                if steps_per == "batch":
                    scheduler.step()
                optimizer.zero_grad()
        if steps_per == "epoch":
            scheduler.step()
    return scheduler.get_last_lr()[0]


def per_batch(batches):
    return EPOCHS * batches


CASES = {
    "unprepared": lambda rt: train(rt, length=per_batch),
    "prepared": lambda rt: train(rt, length=per_batch, from_prepared=True),
    "cosine": lambda rt: train(rt, make=cosine, length=per_batch),
    "cosine from prepared": lambda rt: train(rt, make=cosine, length=per_batch, from_prepared=True),
    "by epoch": lambda rt: train(rt, make=cosine, length=lambda _: BATCHES, steps_per="epoch"),
    "odd": lambda rt: train(rt, length=per_batch, data=loader(9)),
    "one epoch": lambda rt: train(rt, length=lambda batches: batches, epochs=1),
    "divided": lambda rt: train(rt, length=lambda batches: 3 * batches // 2, epochs=3),
    "other loader": lambda rt: (rt.prepare(loader(4)), train(rt, length=per_batch, from_prepared=True))[1],
}
SPLIT = {"split": lambda rt: train(rt, length=per_batch, data=DataLoader(TensorDataset(torch.ones(24, 1)), batch_size=2))}

for case in sys.argv[1:]:
    runtime = accelkit.Runtime("cpu", split_batches=case in SPLIT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        last = (CASES | SPLIT)[case](runtime)
    print("result:", json.dumps([case, last, [str(warning.message) for warning in caught], [warning.filename for warning in caught]]))
    runtime.teardown()
