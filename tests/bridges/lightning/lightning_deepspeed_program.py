"""DeepSpeed on two devices inside Lightning: ``lightning_deepspeed_program.py FOLDER PACKAGE HOW ACCELERATOR RUN...``.

HOW is ``trainer`` or ``fabric``. Each RUN is ``STRATEGY/PRECISION``; the STRATEGY ``object_2`` is an object, with ZeRO 2. Each rank leaves
in FOLDER, for each run, what it saw and the whole parameters after two epochs, between which they were saved and resumed.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from device_checking_model import QUIET, loader, small_net
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from accelkit.bridges.deepspeed import set_accelerator_on_import
from accelkit.bridges.lightning import fabric_kwargs, trainer_kwargs

folder, package, how, accelerator, *runs = sys.argv[1:]
pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
ACCUMULATED, NORM = 2, 0.5


def whole(net):
    import deepspeed

    partitioned = [parameter for parameter in net.parameters() if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(partitioned):
        return [parameter.detach().float().cpu().tolist() for parameter in net.parameters()]


class Module(pl.LightningModule):
    def __init__(self, found):
        super().__init__()
        self.net = small_net()
        self.found = found

    def training_step(self, batch):
        x, y = batch
        self.found["devices"] = sorted({*self.found["devices"], str(x.device), str(self.trainer.model.device)})
        self.found["dtype"] = str(x.dtype)
        return nn.functional.mse_loss(self.net(x).float(), y.float())

    def validation_step(self, batch):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x).float(), y.float()), sync_dist=True)

    def train_dataloader(self):
        dataset = loader().dataset
        return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))  # Lightning's own would shuffle

    def on_train_end(self):
        self.found["parameters"] = whole(self)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def strategy_of(name):
    if not name.startswith("object_"):
        return name
    set_accelerator_on_import(accelerator)  # because the constructor imports deepspeed
    return pl.strategies.DeepSpeedStrategy(stage=int(name[-1]), initial_scale_power=8)  # so that no gradient is infinite


def in_trainer(name, precision, checkpoint, found):
    def make(epochs):
        given = trainer_kwargs(accelerator, devices=2, strategy=strategy_of(name), precision=precision, package=package)
        return pl.Trainer(
            **given,
            **QUIET,
            max_epochs=epochs,
            logger=False,
            default_root_dir=folder,
            accumulate_grad_batches=ACCUMULATED,
            gradient_clip_val=NORM,
        )

    trainer = make(1)
    trainer.fit(Module(found))
    trainer.save_checkpoint(checkpoint)
    trainer = make(2)
    model = Module(found)
    trainer.fit(model, ckpt_path=str(checkpoint))
    found["steps"] = trainer.global_step
    found["val_loss"] = trainer.validate(model, loader(), verbose=False)[0]["val_loss"]
    found["stage"] = trainer.strategy.config["zero_optimization"]["stage"]
    return trainer.global_rank


def in_fabric(name, precision, checkpoint, found):
    prefix = "lightning.fabric" if package == "lightning" else "lightning_fabric"
    fabric = importlib.import_module(prefix).Fabric(
        **fabric_kwargs(accelerator, devices=2, strategy=name, precision=precision, package=package)
    )
    fabric.strategy.config["gradient_clipping"] = NORM  # Lightning's strategy in Fabric has no other way to clip
    fabric.launch()
    net = small_net()
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    batches = fabric.setup_dataloaders(loader())

    def epoch():
        for x, y in batches:
            found["devices"] = sorted({*found["devices"], str(x.device), str(fabric.strategy.model.device)})
            fabric.backward(nn.functional.mse_loss(net(x).float(), y.float()))
            optimizer.step()
            optimizer.zero_grad()

    epoch()
    fabric.save(checkpoint, {"model": net, "optimizer": optimizer, "epoch": 1})
    epoch()
    state = {"model": net, "optimizer": optimizer, "epoch": 0}
    fabric.load(checkpoint, state)
    epoch()
    found |= {"epoch": state["epoch"], "parameters": whole(net)}
    found["stage"] = fabric.strategy.config["zero_optimization"]["stage"]
    return fabric.global_rank


def main():
    found = {run: {"devices": []} for run in runs}
    for run in runs:
        name, precision = run.split("/")
        checkpoint = Path(folder) / f"{name}-{precision}.ckpt"
        rank = (in_fabric if how == "fabric" else in_trainer)(name, precision, checkpoint, found[run])
        found[run] |= {"backends": dist.get_backend_config()}
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
