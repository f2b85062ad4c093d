"""Whether operators give on the device what they give on the CPU: results and gradients, over the samples of torch's own ``op_db``.

``python agreement.py float32 [--part 0/2] [--after NAME] [--most-samples 8]`` prints a line of JSON for each operator, when it starts and
when it is done, so that whoever reads knows which one a crash belongs to. ``judge`` does that for a dtype and goes on after crashes.

Both sides run the same kernels on the same values and the same random state, so they agree to rounding. Memory moves with its layout:
storage, offset and strides of a sample are on the device what they are on the CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

DEVICE = "fake_xpu:0"
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool", "complex64")
# What op_db gives but no device can be compared on: memory that nobody wrote, and CUDA's own compiler.
LEFT_OUT = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "jiterator")

# What does not agree, in which dtypes, and why. Strict: one that agrees after all fails the tests.
_SPARSE = "sparse tensors: fake_xpu has strided ones only"
_ACCUMULATES_LESS = "for device types that it does not know, torch's own Python accumulates in bfloat16 (_resolve_auto_acc_dtype)"
EXPECTED_FAILURES = {
    "sparse.sampled_addmm": (("float32", "float64", "complex64"), _SPARSE),
    "sparse.mm.reduce": (("float32", "float64", "bfloat16"), _SPARSE),
    "to_sparse": (DTYPES, _SPARSE),
    "nn.functional.linear_cross_entropy.chunked": (("bfloat16",), _ACCUMULATES_LESS),
    "nn.functional.linear_cross_entropy.chunked_none": (("bfloat16",), _ACCUMULATES_LESS),
}


@dataclass
class Judgement:
    """What came of the operators of one dtype.

    Attributes:
        agreed: Names of those whose results agree, and whose gradients do too where there are any.
        differentiated: Those of them whose gradients were compared.
        failed: Name to reason.
    """

    agreed: list[str] = field(default_factory=list)
    differentiated: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def judge(dtype: str, most_samples: int = 8, workers: int = 2) -> Judgement:
    """Judge all operators of a dtype, in ``workers`` processes that are started again after a crash."""
    judgement = Judgement()
    with ThreadPoolExecutor(workers) as pool:
        for lines in pool.map(lambda part: list(_lines(dtype, f"{part}/{workers}", most_samples)), range(workers)):
            for line in lines:
                if line["state"] == "agreed":
                    judgement.agreed.append(line["operator"])
                    if line["is_differentiated"]:
                        judgement.differentiated.append(line["operator"])
                else:
                    judgement.failed[line["operator"]] = line["reason"]
    return judgement


def _lines(dtype: str, part: str, most_samples: int) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        command = [sys.executable, __file__, dtype, "--part", part, "--most-samples", str(most_samples), "--after", after]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        yield from (line for line in lines if line["state"] != "started")
        if result.returncode == 0:
            return
        if not lines or lines[-1]["state"] != "started":
            raise RuntimeError(result.stderr)
        after = lines[-1]["operator"]
        yield {
            "operator": after,
            "state": "crashed",
            "reason": f"the process ended with {result.returncode}: {result.stderr.strip()[-300:]}",
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--after", default="")
    parser.add_argument("--most-samples", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    import accelkit_fake_xpu.torch_backend  # noqa: F401
    import torch

    dtype = getattr(torch, options.dtype)
    part, parts = map(int, options.part.split("/"))
    todo = list(_operators(dtype))[part::parts]
    names = [_name(op) for op in todo]
    if options.after:
        todo = todo[names.index(options.after) + 1 :]
    for op in todo:
        _say(operator=_name(op), state="started")
        try:
            is_differentiated = _check(op, dtype, options.most_samples)
        except Exception as error:
            _say(operator=_name(op), state="failed", reason=f"{type(error).__name__}: {error}"[:500])
        else:
            _say(operator=_name(op), state="agreed", is_differentiated=is_differentiated)


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _operators(dtype: Any) -> Iterator[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if dtype in op.supported_dtypes("cpu") and not op.name.startswith(LEFT_OUT):
            yield op


def _check(op: Any, dtype: Any, most_samples: int) -> bool:
    """Compare; raise AssertionError where they differ. Whether gradients were compared."""
    has_gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=has_gradients), most_samples):
        given = (sample.input, sample.args, sample.kwargs)
        on_cpu = _run(op, sample, given, has_gradients)
        on_device = _run(op, sample, _moved(given, op), has_gradients)
        _compare(on_device, on_cpu)
    return has_gradients


def _run(op: Any, sample: Any, given: Any, has_gradients: bool) -> dict[str, Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(0)
    first, args, kwargs = given
    results = op(first, *args, **kwargs)
    gradients: Any = ()
    if has_gradients:
        outputs = [
            leaf for leaf in tree_leaves(sample.output_process_fn_grad(results)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if outputs and inputs:
            torch.manual_seed(0)
            gradients = torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True)
    return {"results": tree_leaves(results), "gradients": list(gradients)}


def _compare(on_device: dict[str, list[Any]], on_cpu: dict[str, list[Any]]) -> None:
    import torch

    for kind, expected in on_cpu.items():
        found = on_device[kind]
        assert len(found) == len(expected), f"{len(found)} {kind}, not {len(expected)}"
        for ours, theirs in zip(found, expected, strict=True):
            if not isinstance(theirs, torch.Tensor):
                assert ours == theirs or (math.isnan(ours) and math.isnan(theirs)), f"{kind}: {ours} is not {theirs}"
                continue
            assert str(ours.device) == DEVICE, f"{kind} are on {ours.device}"
            assert ours.stride() == theirs.stride(), f"{kind} have strides {ours.stride()}, not {theirs.stride()}"
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, msg=lambda text, kind=kind: f"{kind}: {text}")


def _moved(given: Any, op: Any) -> Any:
    """The sample on the device, its memory laid out as it was; one storage stays one storage."""
    import torch
    from torch.utils._pytree import tree_map

    storages: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device(DEVICE)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout is not torch.strided:
            return leaf.to(DEVICE)
        storage = leaf.untyped_storage()
        if storage.data_ptr() not in storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[storage.data_ptr()] = whole.to(DEVICE)
        there = torch.empty(0, dtype=leaf.dtype, device=DEVICE)
        there.set_(storages[storage.data_ptr()].untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride())
        if leaf.is_conj():
            there = torch._conj(there)
        if leaf.is_neg():
            there = torch._neg_view(there)
        return there.requires_grad_(leaf.requires_grad)

    first, args, kwargs = given
    if op.name == "tensor_split":  # where to split is on the CPU, on CUDA too
        return move(first), args, kwargs
    return tree_map(move, (first, args, kwargs))


if __name__ == "__main__":
    main()
