"""Train a small language model on Python's own documentation, on any accelerator and on as many devices as there are.

    python examples/transformer.py --plot loss.svg
    accelkit launch --devices 4 examples/transformer.py --parallel shard=2,tensor=2
    accelkit launch --devices 4 examples/transformer.py --parallel context=2,shard=2

The model reads bytes and predicts the next byte. With ``--checkpoints``, the program saves a checkpoint after each epoch. If it is started
again, it continues from the last checkpoint, even on other devices or with a different ``--parallel``. The exit status is 1 if the model
predicts the held-out text no better than the frequencies of the bytes do.
"""

import argparse
import math
import sys
from importlib.util import find_spec
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import DataLoader, TensorDataset

import accelkit
from accelkit_builtin.strategies.context_parallel import gather_sequence, shard_sequence
from accelkit_builtin.strategies.parallel import ParallelOptions, ParallelStrategy

HEAD_WIDTH = 32
PLAN = {  # with tensor parallelism, each process has some of the heads, and some of the features between linear1 and linear2
    **{f"layers.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "linear1")},
    **{f"layers.*.{name}": RowwiseParallel() for name in ("output", "linear2")},
    "head": ColwiseParallel(output_layouts=Replicate()),
}


class Layer(nn.Module):
    """A transformer layer: attention to earlier bytes, and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        projected = [layer(normed) for layer in (self.query, self.key, self.value)]
        heads = [part.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in projected]  # -1: as many heads as this process has
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(-2))
        return x + self.linear2(nn.functional.gelu(self.linear1(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, width: int, num_layers: int, length: int) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (batch, length, 256) of the byte that follows each byte of ``text`` (batch, length)."""
        x = self.bytes(text) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).log_softmax(-1)


class Curve:
    """The training loss at every tenth step, in bits per byte. The curve is part of the checkpoint."""

    def __init__(self) -> None:
        self.points: dict[int, float] = {}
        self.step = 0

    def state_dict(self) -> dict[str, object]:
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


def read_text(length: int, limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training text and the held-out text, both in rows of ``length + 1`` bytes. One row in ten is held out."""
    text = torch.tensor(list("\n".join(topics.values()).encode()[:limit]), dtype=torch.uint8)
    rows = text.unfold(0, length + 1, length)
    is_held_out = torch.arange(len(rows)) % 10 == 9
    return rows[~is_held_out], rows[is_held_out]


def bits_of_frequencies(train: torch.Tensor, held_out: torch.Tensor) -> float:
    """Return the bits per byte of the held-out text if each byte is predicted only from its frequency in the training text."""
    frequencies = torch.bincount(train.flatten().int(), minlength=256) + 1
    return -(frequencies / frequencies.sum()).log2()[held_out[:, 1:].int()].mean().item()


def losses(model: nn.Module, text: torch.Tensor, mesh: DeviceMesh | None) -> torch.Tensor:
    """Return the mean loss of each row of a batch, in bits per byte. With context parallelism, this process computes a part of each row."""
    text, positions = text.long(), torch.arange(text.shape[1] - 1, device=text.device)
    read, following = shard_sequence((text[:, :-1], text[:, 1:]), mesh, dim=1)
    predicted = model(read, shard_sequence(positions, mesh, dim=0))
    found = nn.functional.nll_loss(predicted.transpose(1, 2), following, reduction="none")
    return gather_sequence(found, mesh, dim=1).mean(1) / math.log(2)


def strategy(text: str | None) -> ParallelStrategy | None:
    """Return the strategy that ``--parallel`` describes, such as ``shard=2,tensor=2``.

    Raises:
        UsageError: If the text is not a list of dimensions with their sizes.
    """
    if text is None:
        return None
    sizes = dict(word.partition("=")[::2] for word in text.split(","))
    for name, size in sizes.items():
        if name not in ("replicate", "shard", "context", "tensor") or not size.removeprefix("-").isdecimal():
            raise accelkit.UsageError(
                f"--parallel {text} is invalid",
                why=f"{name}={size} is not the size of a dimension",
                hint="give sizes of replicate, shard, context and tensor, such as --parallel shard=2,tensor=2",
            )
    return ParallelStrategy(ParallelOptions(plan=PLAN, **{name: int(size) for name, size in sizes.items()}))


def plot(path: str, curve: Curve, held_out: float) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(curve.points), list(curve.points.values()), label="training")
    axes.axhline(held_out, color="grey", linestyle="--", label="held-out text, at the end")
    axes.set(xlabel="step", ylabel="loss in bits per byte", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


class Training:
    """A Runtime and everything that it prepared."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rt = accelkit.Runtime(
            options.accelerator, devices=options.devices, precision=options.precision, strategy=strategy(options.parallel), seed=0
        )
        self.mesh = self.rt.mesh if options.parallel else None
        num_heads = options.width // HEAD_WIDTH
        if self.mesh is not None and num_heads % self.mesh["tensor"].size():
            raise accelkit.UsageError(
                f"--parallel {options.parallel} does not fit --width {options.width}",
                why=f"the number of heads in each layer is {num_heads}, which cannot be divided equally among the processes of tensor",
                hint="use a size of tensor by which the number of heads can be divided",
            )
        train, held_out = read_text(options.length, options.max_bytes)
        batch, rest = divmod(options.batch_size, self.rt.data_parallel_size)
        if rest:
            raise accelkit.UsageError(
                f"--batch-size {options.batch_size} is invalid",
                why="it cannot be divided equally among the processes that train on different samples",
                hint=f"use a multiple of {self.rt.data_parallel_size}",
            )
        if options.batch_size > len(train):
            raise accelkit.UsageError(
                f"the text is too short for --batch-size {options.batch_size}",
                why=f"it has {len(train)} rows of {options.length} bytes to train on",
                hint="use a smaller --batch-size or --length, or a larger --max-bytes",
            )
        self.bits_of_frequencies = bits_of_frequencies(train, held_out)
        model = LanguageModel(options.width, options.layers, options.length)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        total = options.epochs * (len(train) // options.batch_size)
        warmup = max(1, total // 10)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1.1 - step / total))
        loader = DataLoader(TensorDataset(train), batch, shuffle=True, drop_last=True)
        self.model, self.optimizer, self.scheduler, self.loader, self.held_out_loader = self.rt.prepare(
            model, optimizer, scheduler, loader, DataLoader(TensorDataset(held_out), batch)
        )
        self.curve = Curve()
        self.rt.register_for_checkpointing(self.curve)

    def epoch(self, number: int) -> None:
        self.model.train()
        for (text,) in self.rt.progress(self.loader, f"epoch {number}"):
            loss = losses(self.model, text, self.mesh).mean()
            self.rt.backward(loss)
            self.rt.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.curve.step += 1
            if self.curve.step % 10 == 0:
                self.curve.points[self.curve.step] = self.rt.reduce(loss.detach(), "mean").item()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss on the held-out text, in bits per byte."""
        self.model.eval()
        found = (losses(self.model, text, self.mesh) for (text,) in self.held_out_loader)
        return torch.cat([self.rt.gather_for_metrics(each) for each in found]).mean().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", help="a name that accelkit list shows; the default is auto")
    parser.add_argument("--devices", help="how many devices, or which; the default is one, or those that accelkit launch was given")
    parser.add_argument("--precision", help="a name that accelkit list --kind precision shows; the default is 32-true")
    parser.add_argument("--parallel", metavar="SIZES", help="dimensions of parallelism, such as shard=2,tensor=2 for four processes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="rows of text for one step of all processes together")
    parser.add_argument("--length", type=int, default=128, help="bytes in a row of text")
    parser.add_argument("--width", type=int, default=128, help="features of each byte, a multiple of 32, the width of a head")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, help="use only the first bytes of the text")
    parser.add_argument("--checkpoints", help="the folder of the checkpoints; without it, nothing is saved")
    parser.add_argument("--plot", metavar="FILE", help="draw the loss (needs matplotlib)")
    options = parser.parse_args()
    if options.width % HEAD_WIDTH:
        parser.error(f"--width {options.width} is not a multiple of {HEAD_WIDTH}, the width of a head")
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")

    training = Training(options)
    rt, curve = training.rt, training.curve
    rt.print(f"{rt.decision}\n\n{rt.state}\n")
    if options.checkpoints and rt.resume(options.checkpoints):
        rt.print(f"continued after step {curve.step}")
    for epoch in range(training.loader.epoch, options.epochs):
        training.epoch(epoch + 1)
        rt.print(f"epoch {epoch + 1}: {training.evaluate():.6f} bits per byte of the held-out text")
        if options.checkpoints:
            rt.save_state(options.checkpoints, keep_last=2)

    found, simple = training.evaluate(), training.bits_of_frequencies
    rt.print(f"\nThe model needs {found:.3f} bits per byte of the held-out text; the frequencies of the bytes alone need {simple:.3f}.")
    if options.plot and rt.is_main_process:
        plot(options.plot, curve, found)
    rt.teardown()
    return 0 if found < simple else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except accelkit.AccelkitError as error:
        print(f"transformer: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
