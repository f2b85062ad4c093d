"""Trained on several processes: ``lightning_ddp_program.py FOLDER PACKAGE HOW PRECISION``. Each rank leaves in FOLDER what it saw."""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from device_checking_model import QUIET, loader, make_watched

from accelkit.bridges.lightning import fabric_kwargs, install, trainer_kwargs

folder, package, how, precision = sys.argv[1:]
if how == "one_device_each":
    os.environ["FAKE_XPU_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]  # as a scheduler does that gives each process its own device
pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
dtype = {"32-true": torch.float32, "16-mixed": torch.float16}[precision]


def train_in_trainer(arguments):
    model = make_watched(pl, "fake_xpu", dtype)
    trainer = pl.Trainer(**arguments, **QUIET, max_epochs=2, logger=False, default_root_dir=folder)
    found = {}

    def look(*_):
        found["device"], found["backends"] = str(next(model.parameters()).device), dist.get_backend_config()
        found["first"] = float(model.trainer.train_dataloader.dataset.tensors[0][0, 0])
        found["gradient"] = float(model.net.last.weight.grad.sum())

    model.on_after_backward = look
    trainer.fit(model, loader(), loader())
    found |= {"steps": trainer.global_step, "val_loss": trainer.validate(model, loader(), verbose=False)[0]["val_loss"]}
    trainer.save_checkpoint(Path(folder) / "ddp.ckpt")
    return trainer, model, found


def train_in_fabric(arguments):
    fabric = importlib.import_module("lightning.fabric" if package == "lightning" else "lightning_fabric").Fabric(**arguments)
    fabric.launch()
    model = make_watched(pl, "fake_xpu", dtype).net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = fabric.setup(model, optimizer)
    found = {"steps": 0}
    for x, y in fabric.setup_dataloaders(loader()):
        fabric.backward(torch.nn.functional.mse_loss(model(x), y))
        found["gradient"] = float(model.last.weight.grad.sum())
        optimizer.step()
        optimizer.zero_grad()
        found["steps"] += 1
    return fabric, model, found | {"device": str(x.device), "backends": dist.get_backend_config()}


if __name__ == "__main__":
    names = {"accelerator": "fake_xpu", "precision": precision}
    if how == "bare_names":
        install()
        trainer, model, found = train_in_trainer(names | {"devices": 2})
    elif how in ("launched", "one_device_each"):
        trainer, model, found = train_in_trainer(trainer_kwargs(**names, package=package))
    elif how == "fabric":
        trainer, model, found = train_in_fabric(fabric_kwargs(**names, devices=2))
    else:
        trainer, model, found = train_in_trainer(trainer_kwargs(**names, devices=2, package=package))
    found |= {"world_size": trainer.world_size, "parameters": [float(p.detach().double().sum()) for p in model.parameters()]}
    found |= {"environment": [cls.__name__ for cls in type(trainer.strategy.cluster_environment).__mro__]}
    if how == "one_device_each":
        found["auto_device_count"] = trainer.accelerator.auto_device_count()
        found["device_on_machine"] = torch.fake_xpu.get_device_properties(0).index_on_machine
    (Path(folder) / f"rank{trainer.global_rank}.json").write_text(json.dumps(found))
