"""A model that knows on which device it has to train, and says so of its parameters, batches, results and gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def loader(count=32, batch_size=8):
    """Numbers, and the sum of each row."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=batch_size)


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self):
        super().__init__()
        self.into, self.out, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
        self.out.weight = self.into.weight
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.last(self.dropout(self.out(self.into(x).tanh())))


def small_net():
    """Always with the same parameters."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def make_watched(pl, device_type, computes_in=torch.float32, learning_rate=0.05):
    """An instance of a LightningModule of this package."""

    class Watched(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Tied()
            generator = torch.Generator().manual_seed(0)  # its own: what a test has seeded stays so
            for parameter in self.net.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5, generator)
            self.seen = {}
            self.norms, self.steps = [], 0

        def see(self, what, tensor):
            assert tensor.device.type == device_type, f"{what} on {tensor.device}"
            self.seen[what] = self.seen.get(what, 0) + 1

        def loss(self, batch, stage):
            x, y = batch
            self.see(f"{stage} batch", x)
            assert self.net.out.weight is self.net.into.weight
            for parameter in self.parameters():
                self.see(f"{stage} parameter", parameter)
            result = self.net(x)
            assert result.dtype == computes_in, result.dtype
            loss = nn.functional.mse_loss(result.float(), y.float())
            self.see(f"{stage} loss", loss)
            self.log(f"{stage}_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def training_step(self, batch):
            return self.loss(batch, "train")

        def validation_step(self, batch):
            self.loss(batch, "val")

        def test_step(self, batch):
            self.loss(batch, "test")

        def predict_step(self, batch):
            self.see("predict batch", batch[0])
            return self.net(batch[0])

        def on_before_optimizer_step(self, optimizer):
            gradients = [parameter.grad for parameter in self.parameters()]
            for gradient in gradients:
                self.see("gradient", gradient)
            self.norms.append(float(torch.linalg.vector_norm(torch.stack([g.float().norm() for g in gradients]))))
            self.steps += 1

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=learning_rate)

    return Watched()


def parameters_of(module):
    """Copies on the host."""
    return [parameter.detach().cpu().clone() for parameter in module.parameters()]


def loss_of(module):
    """Over all batches, on the host, without dropout."""
    module = module.cpu().eval()
    with torch.no_grad():
        return float(sum(nn.functional.mse_loss(module.net(x), y) for x, y in loader()))
