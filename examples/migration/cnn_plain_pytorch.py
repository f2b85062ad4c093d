"""Train a convolutional network on images of ten classes, in a plain PyTorch loop."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Noisy copies of ten patterns of 8 x 8 pixels. Training images are shifted at random by up to a pixel."""

    def __init__(self, count, seed, is_shifted):
        patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.images = patterns[self.labels] + torch.randn(count, 1, 8, 8, generator=generator)
        self.is_shifted = is_shifted

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.is_shifted:
            image = image.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(1, 2))
        return image, self.labels[index]


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", default="cnn.pt")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)

    train_loader = DataLoader(Images(500, seed=1, is_shifted=True), options.batch_size, shuffle=True, num_workers=1)
    valid_loader = DataLoader(Images(150, seed=2, is_shifted=False), batch_size=64)

    model = make_model().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * len(train_loader))

    first_epoch, best = 0, 0.0
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        torch.set_rng_state(saved["rng"].cpu())
        first_epoch, best = saved["epoch"], saved["best"]

    for epoch in range(first_epoch, options.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.detach()

        model.eval()
        hits = []
        with torch.no_grad():
            for images, labels in valid_loader:
                images, labels = images.to(device), labels.to(device)
                hits.append(model(images).argmax(1) == labels)
        accuracy = torch.cat(hits).float().mean().item()
        print(f"epoch {epoch}: loss {total.item() / len(train_loader)}, accuracy {accuracy}, lr {scheduler.get_last_lr()[0]}")

        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "cnn_best.pt")
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch + 1,
            "best": best,
        }
        torch.save(state, options.checkpoint)
    print(f"best accuracy {best}")


if __name__ == "__main__":
    main()
