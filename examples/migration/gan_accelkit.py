"""Train a generative adversarial network on points near a circle, with accelkit. This is gan_fabric.py after the migration."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit

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
    parser.add_argument("--accelerator")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", default="gan")
    options = parser.parse_args()

    rt = accelkit.Runtime(options.accelerator, seed=0)

    with rt.precision.module_init_context():
        generator, discriminator = make_generator(), make_discriminator()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    generator, optimizer_g = rt.prepare(generator, optimizer_g)
    discriminator, optimizer_d = rt.prepare(discriminator, optimizer_d)
    loader = rt.prepare(DataLoader(TensorDataset(make_points(640)), options.batch_size, shuffle=True, drop_last=True))
    criterion = nn.BCEWithLogitsLoss()

    rt.resume(options.checkpoint)

    for epoch in range(loader.epoch, options.epochs):
        for (real,) in loader:
            ones = torch.ones(len(real), 1, device=rt.device)
            fake = generator(torch.randn(len(real), NOISE, device=rt.device))

            optimizer_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), 0 * ones)
            rt.backward(loss_d)
            rt.clip_grad_norm_(discriminator.parameters(), 1.0)
            optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            rt.backward(loss_g)
            optimizer_g.step()

        losses = rt.reduce(torch.stack([loss_g.detach(), loss_d.detach()]), "mean")
        with torch.no_grad():
            points = generator(torch.randn(256, NOISE, device=rt.device))
        radius = rt.gather(points).norm(dim=1).mean()
        rt.print(f"epoch {epoch}: generator {losses[0].item()}, discriminator {losses[1].item()}, radius {radius.item()}")
        rt.save_state(options.checkpoint, keep_last=2)


if __name__ == "__main__":
    main()
