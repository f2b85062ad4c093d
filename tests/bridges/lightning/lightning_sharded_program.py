"""Sharded on two devices inside Lightning: ``lightning_sharded_program.py FOLDER PACKAGE HOW PRECISION ACCELERATOR``.

HOW is ``arguments``, ``bare_names`` or ``fabric`` with a ModelParallelStrategy of the user's, or these after ``fsdp_`` with the strategy
``fsdp``. Each rank leaves in FOLDER what it saw, and the whole parameters after two epochs, between which the Trainer's were saved and
resumed.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from device_checking_model import QUIET, loader, small_net
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler

from accelkit.bridges.lightning import fabric_kwargs, install, trainer_kwargs

folder, package, how, precision, accelerator = sys.argv[1:]
by_name, how = how.startswith("fsdp_"), how.removeprefix("fsdp_")
pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
found = {"devices": [], "steps": 0}


def shard(net, mesh):
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(net, mesh=mesh["data_parallel"])


def see(*tensors):
    found["devices"] = sorted({*found["devices"], *(str(tensor.device) for tensor in tensors)})


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = small_net() if how == "arguments" else None

    def configure_model(self):
        self.net = self.net or small_net()
        if not by_name:
            shard(self.net, self.device_mesh)

    def training_step(self, batch):
        x, y = batch
        see(x, *self.parameters())
        return nn.functional.mse_loss(self.net(x).float(), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x).float(), y), sync_dist=True)

    def train_dataloader(self):
        dataset = loader().dataset
        return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))  # Lightning's own would shuffle

    def on_before_optimizer_step(self, optimizer):
        see(*(parameter.grad for parameter in self.parameters()))
        found["is_sharded"] = all(isinstance(parameter, DTensor) for parameter in self.parameters())
        found["steps"] += 1

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def in_trainer():
    def make(epochs):
        strategy = "fsdp" if by_name else pl.strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        given = {"accelerator": accelerator, "devices": 2, "strategy": strategy, "precision": precision}
        if how == "arguments":
            given = trainer_kwargs(**given, package=package)
        return pl.Trainer(**given, **QUIET, max_epochs=epochs, logger=False, default_root_dir=folder)

    if how == "bare_names":
        install()
    trainer = make(1)
    trainer.fit(Module())
    checkpoint = Path(folder) / "sharded.ckpt"
    trainer.save_checkpoint(checkpoint)
    found["checkpoint_is_sharded"] = checkpoint.is_dir()
    model, trainer = Module(), make(2)
    trainer.fit(model, ckpt_path=str(checkpoint))
    if by_name:
        found["names"] = sorted(torch.load(checkpoint)["state_dict"])
        found["val_loss"] = [make(2).validate(model, loader(), verbose=False)[0]["val_loss"] for _ in range(2)]  # it is sharded already
    return trainer, model.net


def in_fabric():
    prefix = "lightning.fabric" if package == "lightning" else "lightning_fabric"
    theirs = importlib.import_module(f"{prefix}.strategies").ModelParallelStrategy
    strategy = "fsdp" if by_name else theirs(parallelize_fn=shard, data_parallel_size=2, tensor_parallel_size=1)
    arguments = fabric_kwargs(accelerator, devices=2, strategy=strategy, precision=precision, package=package)
    fabric = importlib.import_module(prefix).Fabric(**arguments)
    fabric.launch()
    net = fabric.setup(small_net())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(net.parameters(), lr=0.05))
    batches = fabric.setup_dataloaders(loader())
    for _ in range(2):
        for x, y in batches:
            fabric.backward(nn.functional.mse_loss(net(x).float(), y))
            see(x, *net.parameters(), *(parameter.grad for parameter in net.parameters()))
            found["is_sharded"] = all(isinstance(parameter, DTensor) for parameter in net.parameters())
            optimizer.step()
            optimizer.zero_grad()
            found["steps"] += 1
    return fabric, net


if __name__ == "__main__":
    owner, net = in_fabric() if how == "fabric" else in_trainer()
    found |= {"backends": dist.get_backend_config(), "parameters": [parameter.full_tensor().tolist() for parameter in net.parameters()]}
    (Path(folder) / f"rank{owner.global_rank}.json").write_text(json.dumps(found))
