"""DeepSpeed inside Lightning, on two devices: the weights of one CPU that trains on the batches of both, also after a resumption."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from device_checking_model import loader, small_net
from preloaded_lightning import python

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


def run(program, *arguments, package="lightning"):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    command = [python(package), HERE / program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def trained_on_one_cpu(batch_size):
    net = small_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for x, y in [*loader(batch_size=batch_size), *loader(batch_size=batch_size)]:
        torch.nn.functional.mse_loss(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return net


@pytest.mark.parametrize(
    ("package", "how", "accelerator", "runs"),
    [
        (
            "lightning",
            "trainer",
            "fake_xpu",
            {
                "deepspeed_stage_1/32-true": 1,
                "deepspeed_stage_2_offload/32-true": 2,
                "deepspeed_stage_3/32-true": 3,
                "object_2/16-mixed": 2,
            },
        ),
        ("lightning", "fabric", "fake_xpu", {"deepspeed_stage_2/32-true": 2, "deepspeed_stage_3_offload/bf16-mixed": 3}),
        pytest.param(
            "pytorch_lightning",
            "trainer",
            "fake_xpu",
            {"deepspeed/32-true": 2, "deepspeed_stage_3_offload/bf16-true": 3, "object_3/16-true": 3},
            marks=pytest.mark.soak,
        ),
        pytest.param("lightning", "trainer", "cpu", {"deepspeed_stage_3/32-true": 3, "object_2/bf16-mixed": 2}, marks=pytest.mark.soak),
    ],
)
def test_it_trains_and_resumes_like_one_cpu(package, how, accelerator, runs, tmp_path):
    run("lightning_deepspeed_program.py", tmp_path, package, how, accelerator, *runs, package=package)
    ranks = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))]
    assert len(ranks) == 2
    net = trained_on_one_cpu(batch_size=32 if how == "trainer" else 16)  # two processes with batches of 8; a Trainer accumulates two
    for name, stage in runs.items():
        is_exact = name.endswith("/32-true")
        for rank, found in enumerate(one[name] for one in ranks):
            assert found["devices"] == [accelerator if accelerator == "cpu" else f"{accelerator}:{rank}"]
            assert found["stage"] == stage
            assert accelerator == "cpu" or "fake_xpu:fxccl" in found["backends"]
            differences = [
                (torch.tensor(trained) - expected.detach()).abs().max().item()
                for trained, expected in zip(found["parameters"], net.parameters(), strict=True)
            ]
            assert max(differences) < (1e-6 if is_exact else 0.02), name
            if how == "fabric":
                assert found["epoch"] == 1, "what was saved beside the model"
                continue
            assert found["steps"] == 2
            x, y = loader().dataset.tensors
            assert found["val_loss"] == pytest.approx(torch.nn.functional.mse_loss(net(x), y).item(), rel=1e-5 if is_exact else 0.02)


def test_what_it_refuses(error_text):
    texts = json.loads(run("lightning_deepspeed_errors_program.py").splitlines()[-1])
    assert {name: text.partition(":")[0] for name, text in texts.items()} == {
        "lazy": "UnsupportedError",
        "nvme": "UnsupportedError",
        "nvme_in_a_configuration": "UnsupportedError",
        "activation_checkpointing": "UnsupportedError",
        "float64": "UnsupportedError",
        "precision_plugin": "UnsupportedError",
        "dtype_that_deepspeed_lacks": "UnsupportedError",
        "imported_for_another_device": "ContradictionError",
    }
    for text in texts.values():
        assert text == error_text
