"""Train a small convolutional network on scikit-learn's scans of handwritten digits, on any accelerator.

    python examples/digits.py --accelerator auto --precision bf16-mixed

After training, the program saves the state, loads it into a new Runtime, and evaluates the model again. Its exit status is 1 if the two
accuracies differ, or if the model recognises fewer than 97 % of the held-out digits.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable

import torch
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import accelkit

WANTED = 0.97
"""The share of the held-out digits that the model must recognise."""


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 4 * 4, 10),
    )


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of 8 x 8 pixels, with values from 0 to 1, and their labels.

    The images come from scikit-learn. If the environment variable DIGITS_FILE is set, they come from the copy of scikit-learn's file whose
    path is the value of this variable.
    """
    if file := os.environ.get("DIGITS_FILE"):
        import numpy as np

        table = torch.from_numpy(np.loadtxt(file, delimiter=","))
        return table[:, :-1].view(-1, 8, 8).float() / 16, table[:, -1].long()
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)


def make_loaders() -> tuple[DataLoader, DataLoader]:
    """Return a data loader for the 1,438 training digits, and one for the 359 held-out digits. The split is the same in every call."""
    dataset = TensorDataset(*read_digits())
    train, held_out = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(held_out, batch_size=256)


class Training:
    """A Runtime and everything that it prepared."""

    def __init__(self, options: argparse.Namespace, make_model: Callable[[], nn.Module] = make_model) -> None:
        self.rt = accelkit.Runtime(options.accelerator, devices=options.devices, precision=options.precision, seed=options.seed)
        model, (train_loader, held_out_loader) = make_model(), make_loaders()
        eps = 1e-4 if options.precision == "16-true" else 1e-8  # 1e-8 is 0 in float16
        optimizer = torch.optim.AdamW(model.parameters(), eps=eps)
        steps = options.epochs * math.ceil(len(train_loader) / self.rt.num_processes)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
        prepared = self.rt.prepare(model, optimizer, scheduler, train_loader, held_out_loader)
        self.model, self.optimizer, self.scheduler, self.train_loader, self.held_out_loader = prepared

    def epoch(self) -> None:
        self.model.train()
        for images, labels in self.train_loader:
            self.assert_on_device(images, labels)
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.rt.backward(loss)
            self.assert_on_device(loss, *(parameter.grad for parameter in self.model.parameters() if parameter.requires_grad))
            self.rt.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        moments = [state[name] for state in self.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        self.assert_on_device(*self.model.parameters(), *self.model.buffers(), *moments)

    def assert_on_device(self, *tensors: torch.Tensor) -> None:
        """Assert that all tensors are on the device of the Runtime."""
        elsewhere = {str(tensor.device) for tensor in tensors} - {str(self.rt.device)}
        assert not elsewhere, f"a tensor is on {elsewhere}, not on {self.rt.device}"

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        hits = [self.rt.gather_for_metrics(self.model(images).argmax(1) == labels) for images, labels in self.held_out_loader]
        return torch.cat(hits).float().mean().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", help="a name, as accelkit list shows them; by default auto")
    parser.add_argument("--devices", help="how many, or which: 1, 0,; by default one, or those that accelkit launch was told")
    parser.add_argument("--precision", help="as accelkit list --kind precision shows them; by default 32-true")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", help="where the checkpoint goes; by default a temporary folder")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: train for at least one")

    training = Training(options)
    training.rt.print(f"{training.rt.decision}\n\n{training.rt.state}\n")
    for _ in track(range(options.epochs), "training", disable=not training.rt.is_main_process):
        training.epoch()
    trained = training.accuracy()

    with tempfile.TemporaryDirectory() as temporary:
        path = training.rt.save_state(options.output_dir or training.rt.broadcast(temporary))  # all processes use the folder of rank 0
        fresh = Training(options)
        fresh.rt.load_state(path)
        reloaded = fresh.accuracy()
        training.rt.wait_for_everyone()

    training.rt.print(f"{trained:.2%} of the held-out digits are classified correctly; {reloaded:.2%} after saving and loading the model")
    if trained == reloaded and trained >= WANTED:
        return 0
    training.rt.print(f"digits: {WANTED:.0%} are expected, the same before and after: more --epochs, or a device that computes wrongly")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except accelkit.AccelkitError as error:
        print(f"digits: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
