"""What is trained in a vendor's precision: in accelkit.Runtime, in a Trainer and in a Fabric, the same loss of the same batches."""

from __future__ import annotations

import torch
from device_checking_model import small_net
from torch.utils.data import DataLoader, TensorDataset

NAME = "acme-scaled"
CLIPPED = 0.05


class Loss(torch.nn.Module):
    """Computes the loss in its forward pass, which Runtime and Fabric run in the forward context, as a Trainer does the whole step."""

    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.net(x), y)


def batches():
    """float64, which the precision converts: without that, the layers raise an error."""
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=4)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def make_module(pl, *, is_manual=False):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.loss, self.losses, self.norms = Loss(), [], []
            self.automatic_optimization = not is_manual

        def training_step(self, batch):
            x, y = batch
            assert x.device.type == "fake_xpu"
            loss = self.loss(x, y)
            self.losses.append(float(loss.detach()))
            if not is_manual:
                return loss
            optimizer = self.optimizers()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, CLIPPED, "norm")
            optimizer.step()
            optimizer.zero_grad()
            return None

        def on_before_optimizer_step(self, optimizer):
            self.norms.append(float(torch.stack([parameter.grad.norm() for parameter in self.parameters()]).norm()))

        def configure_optimizers(self):
            return sgd(self)

    return Module()
