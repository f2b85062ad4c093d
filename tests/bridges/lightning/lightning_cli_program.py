"""A user's train.py: LightningCLI, and one line for accelkit."""

import importlib
import os
import sys

import torch
from device_checking_model import loader, make_watched

from accelkit.bridges.lightning import install

package = os.environ["LIGHTNING_PACKAGE"]
pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
cli = importlib.import_module(f"{pl.__name__}.cli")


class Model(type(make_watched(pl, "fake_xpu", torch.float16))):
    def on_train_end(self):
        sys.stdout.write(f"trained on {self.device} in {self.trainer.precision}, {self.trainer.global_step} steps\n")

    def train_dataloader(self):
        return loader()


if __name__ == "__main__":
    install()
    cli.LightningCLI(Model)
