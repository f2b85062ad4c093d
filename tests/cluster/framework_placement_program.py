"""A program that prints, as a line of JSON, where this process is, as Fabric and a Trainer, or Accelerate, have it from the bridge."""

from __future__ import annotations

import json
import sys

import torch


def in_lightning():
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer

    from accelkit.bridges.lightning import fabric_kwargs, trainer_kwargs

    fabric = Fabric(**fabric_kwargs("cpu"))
    fabric.launch()
    total = fabric.all_reduce(torch.ones(1), reduce_op="sum").item()
    trainer = Trainer(**trainer_kwargs("cpu"), logger=False, enable_checkpointing=False)
    machines = [fabric.node_rank, trainer.num_nodes]
    return [fabric.local_rank, trainer.num_devices, *machines], total


def in_accelerate():
    from accelkit.bridges.accelerate import accelerator

    accelerator = accelerator("cpu")
    total = accelerator.reduce(torch.ones(1), "sum").item()
    return [accelerator.local_process_index, accelerator.is_local_main_process], total


place, total = {"lightning": in_lightning, "accelerate": in_accelerate}[sys.argv[1]]()
print(json.dumps({"place": place, "total": total}))
