"""On a real device that is not the CPU and makes new parameters when a module moves: PrivateUse1, compiled here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("device")
    library, (torch_libraries, *_) = folder / "device.so", library_paths()
    flags = ["-O0", "-std=c++20", "-shared", "-fPIC", *(f"-I{path}" for path in include_paths())]
    links = [f"-L{torch_libraries}", f"-Wl,-rpath,{torch_libraries}", "-ltorch_cpu", "-lc10"]
    subprocess.run(["c++", *flags, "-o", library, HERE / "device.cpp", *links], check=True)
    result = subprocess.run(
        [sys.executable, HERE / "device_program.py", library, folder / "ckpt"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["makes new parameters", "tied", "optimizer follows", "learns", "everything on the device", "reloaded"])
def test_training_on_it(seen, what):
    assert seen["device"] == "tiny:0"
    assert seen[what]


def test_each_batch_is_copied_on_a_side_stream_while_the_one_before_is_computed_with(seen):
    copy, hand_over = "copy on 1", ["wait 0 for 1", "keep for 0"]
    journals = [batch["journal"] for batch in seen["batches"]]
    assert journals == [[copy, copy, *hand_over], [copy, *hand_over], hand_over]
    assert {batch["device"] for batch in seen["batches"]} == {"tiny:0"}


def test_a_device_without_autocast_refuses_mixed_precision(seen):
    assert "tiny does not support precision 'bf16-mixed'" in seen["no autocast"]
    assert "torch.autocast('tiny', torch.bfloat16) failed: " in seen["no autocast"]


def test_a_device_that_cannot_be_waited_for_says_so(seen):
    assert seen["check"] == "usable"
    for part in ("does not support synchronize", "Backend doesn't support synchronizing all streams", "torch.tiny has no synchronize"):
        assert part in seen["no synchronize"]


def test_a_device_without_statistics_has_none(seen):
    assert seen["statistics"] == {}


def test_the_profiler_names_operators_that_ran_on_the_cpu(seen):
    assert seen["fallbacks"]["aten::mm"] == 5, "two in the forward pass, three in the backward pass"
    (fallback,) = [finding for finding in seen["findings"] if finding.startswith("fallback: ")]
    assert fallback.startswith("fallback: tiny:0 does not implement aten::")
    table = seen["summary"].partition("RUNS ON THE CPU")[2].partition("\n\n")[0].splitlines()
    assert ["aten::mm", "5"] in [row.split()[:2] for row in table]
