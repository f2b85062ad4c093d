"""The programs that ``Runtime.compare_to_cpu`` writes."""

import contextlib
import io
import types

import torch

import accelkit
from accelkit.runtime.comparison.reproducer import write_program


def test_the_program_keeps_imaginary_parts(tmp_path):
    accelkit.select("fake_xpu").accelerator.load()
    inputs = torch.tensor([complex(1, float("inf")), complex(float("nan"), -2)])
    call = types.SimpleNamespace(operator=torch.ops.aten.mul.Tensor, given=((inputs, complex(0, float("inf"))), {}))
    program, _ = write_program(call, tmp_path, "fake_xpu", torch.device("fake_xpu", 0), "a comment")
    exec(compile(program, "program", "exec"), {})
    call = types.SimpleNamespace(operator=torch.ops.aten.conj_physical.default, given=((torch.tensor([1 + 2j]),), {}))
    program, _ = write_program(call, tmp_path, "fake_xpu", torch.device("fake_xpu", 0), "a comment")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), torch.fake_xpu.fault("wrong@conj_physical"):
        exec(compile(program, "program", "exec"), {})
    assert "dtype=torch.complex128" in printed.getvalue()
    assert not printed.getvalue().endswith("largest difference: 0.0\n")
