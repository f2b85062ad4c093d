"""A training program in which rank 1 raises an error.

A launcher runs the program as ``python -m accelkit_conformance.oracle.strategy_failure RECORD TEXT``. RECORD is the ``PluginRecord`` of the
strategy as JSON. TEXT is the message of the error.
"""

from __future__ import annotations

import json
import sys

import torch

from accelkit import PluginRecord, Runtime
from accelkit.discovery import loading
from accelkit_conformance.oracle.strategy_models import BlockModel, make

if __name__ == "__main__":
    record = PluginRecord(**json.loads(sys.argv[1]))
    with Runtime(strategy=loading.instantiate(loading.load_class(record), record)) as rt:
        model = make(BlockModel, torch.float32)
        model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            with rt.no_sync(model):
                if step and rt.process_index == 1:
                    raise RuntimeError(sys.argv[2])
                rt.backward(model(torch.ones(2, 4, device=rt.device)).square().mean())
            rt.backward(model(torch.ones(2, 4, device=rt.device)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
