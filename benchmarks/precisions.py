"""The dtypes in which each precision stores and computes, and the accuracy that it reaches: the table of docs/precisions.md.

    python benchmarks/precisions.py --accelerator cpu --accelerator fake_xpu --write docs/precisions.md

Trains examples/digits.py in every precision on every accelerator. If a precision freezes weights, training continues from a model that was
trained in float32. Exits with 1 if a layer, a gradient or an optimizer's state has a different dtype than the precision promises, or if a
precision reaches less than 97 % of float32's accuracy. If a precision is unavailable on an accelerator, its row says why.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import accelkit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import digits  # noqa: E402

PROMISED = {  # stored (parameters, gradients, optimizer state), computed
    "32-true": ("float32", "float32"),
    "64-true": ("float64", "float64"),
    "bf16-mixed": ("float32", "bfloat16"),
    "16-mixed": ("float32", "float16"),
    "bf16-true": ("bfloat16", "bfloat16"),
    "16-true": ("float16", "float16"),
    "fp8": ("float32", "bfloat16"),
    "bitsandbytes-8bit": ("bfloat16", "bfloat16"),
    "bitsandbytes-4bit": ("bfloat16", "bfloat16"),
    "transformer-engine": ("bfloat16", "bfloat16"),
    "transformer-engine-float16": ("float16", "float16"),
}
_WIDE, _LAST = "8", "10"  # names of the Linear whose sizes are multiples of 16, and of the other Linear
APART = {  # layers for which a precision promises other dtypes: stored, operands, gradients, moments
    ("fp8", _WIDE): ("float32", "float8_e4m3fn", "float32", "float32"),
    **{("bitsandbytes-8bit", layer): ("bfloat16 int8", "bfloat16", "bfloat16", "bfloat16") for layer in (_WIDE, _LAST)},
    **{("bitsandbytes-4bit", layer): ("bfloat16 uint8", "bfloat16", "bfloat16", "bfloat16") for layer in (_WIDE, _LAST)},
}
_LEAST = 0.97
_BEGIN, _END = "<!-- table: {name} -->", "<!-- end of table -->"


def make_model() -> nn.Module:
    """Return the model of the example with one more layer, which is wide enough for float8."""
    model = digits.make_model()
    model[int(_WIDE)] = nn.Linear(64 * 4 * 4, 64)
    return model.extend([nn.ReLU(), nn.Linear(64, 10)])


class Products(TorchDispatchMode):
    """Mode that records the dtype of the first operand of float8 products in ``seen``, for each layer. ``layer`` is the running layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = "", {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not all(kind in (torch.Tensor, nn.Parameter) for kind in types):
            return NotImplemented  # a tensor subclass that wraps tensors is dispatched first, and calls again with the tensors inside
        if func is torch.ops.aten._scaled_mm.default:
            self.seen[self.layer] = args[0].dtype
        return func(*args, **(kwargs or {}))


class Trained:
    """One training, and the dtypes that were observed in it.

    Attributes:
        accuracy: The accuracy on the held-out digits after the training.
        before: The accuracy before the training if the model had been trained in float32 already, otherwise None.
        layers: For each layer with parameters: its name, and the dtypes of its parameters, of its result (of its operands, for float8
            products), of its gradients and of its optimizer's moments.
        result: The dtype of the model's output.
    """

    def __init__(self, accelerator: str, precision: str, epochs: int) -> None:
        options = argparse.Namespace(accelerator=accelerator, devices=None, precision=precision, epochs=epochs, seed=0)
        make = make_model
        if precision.startswith("bitsandbytes"):  # the frozen weights must have been trained before
            first = digits.Training(argparse.Namespace(**vars(options) | {"precision": "32-true"}), make_model)
            for _ in range(epochs):
                first.epoch()
            make = functools.partial(torch.nn.Module.to, first.model, "cpu")
        training = digits.Training(options, make)
        self.before = training.accuracy() if make is not make_model else None
        computed: dict[str, torch.dtype] = {}
        gradients: dict[str, torch.dtype] = {}
        for name, layer in training.model.named_children():
            layer.register_forward_hook(lambda module, given, result, name=name: computed.update({name: result.dtype}))
        for name, parameter in training.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda tensor, name=name: gradients.update({name: tensor.grad.dtype}))
        for _ in range(epochs):
            training.epoch()
        self.accuracy = training.accuracy()
        for name, layer in training.model.named_children():
            layer.register_forward_pre_hook(lambda module, given, name=name: setattr(products, "layer", name))
        with Products() as products:
            (self.result,) = {short(training.model(images).dtype) for images, _ in list(training.held_out_loader)[:1]}
        computed |= products.seen
        self.layers = []
        for name, layer in training.model.named_children():
            if own := dict(layer.named_parameters()):
                learns = {key: training.optimizer.state[tensor] for key, tensor in own.items() if tensor.requires_grad}
                moments = {state[moment].dtype for state in learns.values() for moment in ("exp_avg", "exp_avg_sq")}
                seen = (
                    {tensor.dtype for tensor in own.values()},
                    {computed[name]},
                    {gradients[f"{name}.{key}"] for key in learns},
                    moments,
                )
                self.layers.append((f"{name} {type(layer).__name__}", *(" ".join(sorted(map(short, dtypes))) for dtypes in seen)))

    def differences(self, precision: str) -> list[str]:
        """Return a description of each dtype that differs from the one that the precision promises."""
        stored, computed = PROMISED[precision]
        kinds = ("parameters", "result", "gradients", "moments")
        return [
            f"{layer}: {kind} in {dtype}, not in {promised}"
            for layer, *seen in self.layers
            for kind, dtype, promised in zip(
                kinds, seen, APART.get((precision, layer.split()[0]), (stored, computed, stored, stored)), strict=True
            )
            if dtype != promised
        ]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def row(accelerator: str, precision: str, baseline: float | None, epochs: int) -> tuple[str, float | None, list[str]]:
    """Train, and return the row of the table, the accuracy (None if the precision is unavailable), and what is wrong."""
    try:
        trained = Trained(accelerator, precision, epochs)
    except (accelkit.UnsupportedError, accelkit.UnavailableError) as error:
        return f"| `{accelerator}` | `{precision}` | unavailable: {error.why} | | | | | |", None, []
    wrong = trained.differences(precision)
    accuracies = [trained.accuracy] if trained.before is None else [trained.before, trained.accuracy]
    shown = ", then ".join(f"{accuracy:.2%}" for accuracy in accuracies)
    if baseline is not None and min(accuracies) < _LEAST * baseline:
        wrong.append(f"{shown} of the digits are right; in float32 {baseline:.2%}")
    first = trained.layers[0][1:]
    same = all(layer[1:] == first for layer in trained.layers)
    cells = first if same else tuple(_summary([(layer[0], layer[number]) for layer in trained.layers]) for number in range(1, 5))
    return f"| `{accelerator}` | `{precision}` | {shown} | {' | '.join(cells)} | {trained.result} |", trained.accuracy, wrong


def _summary(dtypes: list[tuple[str, str]]) -> str:
    """Return the dtype of most layers, followed by the layers with another dtype."""
    usual = collections.Counter(dtype for _, dtype in dtypes).most_common(1)[0][0]
    others = [f"{layer}: {dtype}" for layer, dtype in dtypes if dtype != usual]
    return "; ".join([usual, *others])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", action="append", required=True, help="may be given several times")
    parser.add_argument("--precision", action="append", choices=PROMISED, help="by default all")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page, between its markers")
    parser.add_argument("--table", default="precisions", help="between which markers of the page")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the table into this file, row by row, even if something is wrong"
    )
    options = parser.parse_args()
    torch.compiler.set_stance("force_eager")  # bitsandbytes would recompile its functions in plain torch at every step
    lines = [
        "| accelerator | precision | digits | parameters | layers compute in | gradients | optimizer state | the model returns |",
        "|---|---|---|---|---|---|---|---|",
    ]
    failures = []
    for accelerator in options.accelerator:
        _ = accelkit.Runtime(accelerator).device  # torch counts the devices only once, at the first backward pass of a process
    for accelerator in options.accelerator:
        baseline = None
        for precision in dict.fromkeys(["32-true", *(options.precision or PROMISED)]):
            line, accuracy, wrong = row(accelerator, precision, baseline, options.epochs)
            baseline = accuracy if precision == "32-true" else baseline
            lines.append(line)
            failures += [f"{accelerator} {precision}: {text}" for text in wrong]
            print(line, *wrong, sep="\n", flush=True)
            if options.output is not None:
                options.output.write_text("\n".join([*lines, "", *failures]) + "\n", "utf-8")
    if options.write is not None and not failures:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        commit = found.stdout.strip() or "unknown"
        where = f"{datetime.date.today()}, accelkit {accelkit.__version__} at {commit}, torch {torch.__version__}, {platform.machine()}"
        begin = _BEGIN.format(name=options.table)
        table = "\n".join([begin, *lines, "", f"{where}, {options.epochs} epochs.", _END])
        page, count = re.subn(f"{begin}.*?{_END}", lambda _: table, options.write.read_text("utf-8"), flags=re.DOTALL)
        if count != 1:
            parser.error(f"{options.write} has {count} tables that begin with {begin}")
        options.write.write_text(page, "utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
