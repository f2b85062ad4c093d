"""Train a convolutional network on images of ten classes, with accelkit. This is cnn_plain_pytorch.py after the migration."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import accelkit


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


class Progress:
    """The values that a resumed run needs in addition to the states of the prepared objects."""

    def __init__(self):
        self.epoch, self.best = 0, 0.0

    def state_dict(self):
        return vars(self).copy()

    def load_state_dict(self, state):
        vars(self).update(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", default="cnn")
    options = parser.parse_args()

    rt = accelkit.Runtime(options.accelerator, seed=0)

    train_loader = DataLoader(Images(500, seed=1, is_shifted=True), options.batch_size, shuffle=True, num_workers=1)
    valid_loader = DataLoader(Images(150, seed=2, is_shifted=False), batch_size=64)
    train_loader, valid_loader = rt.prepare(train_loader, valid_loader)

    model = make_model()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * len(train_loader))

    model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)

    progress = Progress()
    rt.register_for_checkpointing(progress)
    rt.resume(options.checkpoint)

    for epoch in range(progress.epoch, options.epochs):
        model.train()
        total = torch.zeros((), device=rt.device)
        for images, labels in train_loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            rt.backward(loss)
            rt.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.detach()

        model.eval()
        hits = []
        with torch.no_grad():
            for images, labels in valid_loader:
                hits.append(rt.gather_for_metrics(model(images).argmax(1) == labels))
        accuracy = torch.cat(hits).float().mean().item()
        loss = rt.reduce(total, "mean").item() / len(train_loader)
        rt.print(f"epoch {epoch}: loss {loss}, accuracy {accuracy}, lr {scheduler.get_last_lr()[0]}")

        progress.epoch = epoch + 1
        if accuracy > progress.best:
            progress.best = accuracy
            rt.save_model(model, "cnn_best")
        rt.save_state(options.checkpoint, keep_last=2)
    rt.print(f"best accuracy {progress.best}")


if __name__ == "__main__":
    main()
