"""Cost of the fake XPU compared with the CPU: single operators on small tensors, and training on digits.

Operators run on 32x32 float32 tensors in one thread. The ratio is that of the fastest times in interleaved rounds. Training runs epochs of
examples/digits.py; the time to start is not counted.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from measuring import arguments, compare, microseconds, report
from torch.nn import functional as F

import accelkit

CALLS = 500
COMMON = 17  # the first 17 operators below are the most common in programs


def operators(device: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    a, b, out = (torch.randn(32, 32).to(device) for _ in range(3))
    index, images, kernel = torch.randint(32, (8,)).to(device), torch.randn(4, 3, 8, 8).to(device), torch.randn(8, 3, 3, 3).to(device)
    many = [torch.randn(8, 8).to(device) for _ in range(8)]
    return {
        "add": lambda: a + b,
        "add_scalar": lambda: a + 1.5,
        "mul_": lambda: a.mul_(1.0),
        "exp": a.exp,
        "relu": a.relu,
        "gelu": lambda: F.gelu(a),
        "where": lambda: torch.where(a > 0, a, b),
        "sum": a.sum,
        "mean": lambda: a.mean(1),
        "softmax": lambda: a.softmax(1),
        "argmax": lambda: a.argmax(1),
        "clone": a.clone,
        "copy_": lambda: out.copy_(a),
        "cat": lambda: torch.cat([a, b]),
        "mm": lambda: a @ b,
        "addmm": lambda: torch.addmm(a, a, b),
        "linear": lambda: F.linear(a, b),
        "view": lambda: a.view(-1),
        "item": a.view(-1)[0].item,
        "index": lambda: a[index],
        "embedding": lambda: F.embedding(index, a),
        "conv2d": lambda: F.conv2d(images, kernel),
        "batch_norm": lambda: F.batch_norm(images, None, None, training=True),
        "layer_norm": lambda: F.layer_norm(a, (32,)),
        "dropout": lambda: F.dropout(a),
        "max_pool2d": lambda: F.max_pool2d(images, 2),
        "sort": a.sort,
        "cumsum": lambda: a.cumsum(0),
        "nonzero": a.nonzero,
        "flip": lambda: a.flip(0),
        "roll": lambda: a.roll(1),
        "fft": lambda: torch.fft.fft(a),
        "inv": lambda: torch.linalg.inv(a),
        "foreach_add": lambda: torch._foreach_add(many, many),
        "foreach_addcdiv": lambda: torch._foreach_addcdiv(many, many, many),
        "arange": lambda: torch.arange(10, device=device),
        "randn": lambda: torch.randn(8, device=device),
    }


def ratios(rounds: int) -> Mapping[str, float]:
    on_cpu, on_device = operators("cpu"), operators("fake_xpu")
    measure = functools.partial(microseconds, calls=CALLS, warm_up=50, clock=time.perf_counter)
    found = {}
    for name in on_cpu:
        pairs = [(measure(on_cpu[name]), measure(on_device[name])) for _ in range(rounds)]
        found[name] = min(ours for _, ours in pairs) / min(cpu for cpu, _ in pairs)
    return found


def digits(accelerator: str, epochs: int = 4) -> Callable[[], float]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import argparse

    from digits import Training

    options = argparse.Namespace(accelerator=accelerator, devices=1, precision=None, seed=0, epochs=100)
    training = Training(options)
    training.epoch()

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(epochs):
            training.epoch()
        return time.perf_counter() - start

    return seconds


def main() -> None:
    options = arguments(__doc__.partition("\n")[0], rounds=5)
    accelkit.Runtime("fake_xpu").device  # noqa: B018 # adds the device to torch
    torch.set_num_threads(1)
    found = ratios(options.rounds)
    common = list(found)[:COMMON]
    if not options.json:
        print("time of an operator on the fake XPU, as a multiple of the CPU's")
        for name, ratio in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{name:<28}{ratio:>8.2f}{'  common' if name in common else ''}")
        print(f"{'worst of the common':<28}{max(found[name] for name in common):>8.2f}")
        print(f"{'worst of all':<28}{max(found.values()):>8.2f}")
    torch.set_num_threads(2)
    measures = {"cpu": digits("cpu"), "fake_xpu": digits("fake_xpu")}
    report([compare("four epochs of digits", "s", measures, options.rounds, options.seconds)], is_json=options.json)


if __name__ == "__main__":
    main()
