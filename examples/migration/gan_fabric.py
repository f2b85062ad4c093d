"""Train a generative adversarial network on points near a circle, with Lightning Fabric."""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE = 4


def make_points(count):
    """Return points near a circle of radius 2."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(count, 2, generator=generator)
    return 2 * points / points.norm(dim=1, keepdim=True) + 0.05 * torch.randn(count, 2, generator=generator)


def make_generator():
    return nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def make_discriminator():
    return nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", default="gan.ckpt")
    options = parser.parse_args()

    fabric = Fabric(accelerator=options.accelerator, devices=options.devices)
    fabric.launch()
    fabric.seed_everything(0)

    with fabric.init_module():
        generator, discriminator = make_generator(), make_discriminator()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    generator, optimizer_g = fabric.setup(generator, optimizer_g)
    discriminator, optimizer_d = fabric.setup(discriminator, optimizer_d)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(make_points(640)), options.batch_size, shuffle=True, drop_last=True))
    criterion = nn.BCEWithLogitsLoss()

    state = {"generator": generator, "discriminator": discriminator, "optimizer_g": optimizer_g, "optimizer_d": optimizer_d, "epoch": 0}
    if os.path.exists(options.checkpoint):
        fabric.load(options.checkpoint, state)

    for epoch in range(state["epoch"], options.epochs):
        for (real,) in loader:
            ones = torch.ones(len(real), 1, device=fabric.device)
            fake = generator(torch.randn(len(real), NOISE, device=fabric.device))

            optimizer_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), 0 * ones)
            fabric.backward(loss_d)
            fabric.clip_gradients(discriminator, optimizer_d, max_norm=1.0)
            optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            fabric.backward(loss_g)
            optimizer_g.step()

        losses = fabric.all_reduce(torch.stack([loss_g.detach(), loss_d.detach()]))
        with torch.no_grad():
            points = generator(torch.randn(256, NOISE, device=fabric.device))
        radius = fabric.all_gather(points).reshape(-1, 2).norm(dim=1).mean()
        fabric.print(f"epoch {epoch}: generator {losses[0].item()}, discriminator {losses[1].item()}, radius {radius.item()}")
        state["epoch"] = epoch + 1
        fabric.save(options.checkpoint, state)


if __name__ == "__main__":
    main()
