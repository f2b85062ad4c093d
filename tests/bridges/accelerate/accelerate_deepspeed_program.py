"""DeepSpeed inside Accelerate, in a job: ``accelerate_deepspeed_program.py ACCELERATOR PRECISION STAGE FOLDER [offload]``.

Each process prints one line of JSON.
"""

import contextlib
import json
import sys

import torch
from accelerate.utils import DeepSpeedPlugin
from one_cpu import train_on_one_cpu
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit.bridges.accelerate import install

NAME, MIXED, STAGE, FOLDER, *OFFLOAD = sys.argv[1:]


def parts():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return net, torch.optim.AdamW(net.parameters(), lr=0.05), TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def main():
    runtime = install(NAME)
    import deepspeed  # as transformers does, before it creates an Accelerator
    from accelerate import Accelerator

    plugin = DeepSpeedPlugin(
        zero_stage=int(STAGE),
        gradient_clipping=1.0,
        zero3_save_16bit_model=True,
        offload_optimizer_device="cpu" if OFFLOAD else "none",
    )
    plugin.deepspeed_config["zero_force_ds_cpu_optimizer"] = False
    if MIXED == "fp16":
        plugin.deepspeed_config["fp16"] = {"enabled": True, "initial_scale_power": 8}  # so that no gradient is infinite
    acc = Accelerator(deepspeed_plugin=plugin, mixed_precision=MIXED)
    net, optimizer, dataset = parts()
    net, optimizer, loader = acc.prepare(net, optimizer, DataLoader(dataset, batch_size=8))
    dtype = next(net.module.parameters()).dtype

    def epoch():
        for x, y in loader:
            acc.backward(nn.functional.mse_loss(net(x.to(dtype)).float(), y))
            acc.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return {name: tensor.float().cpu() for name, tensor in (acc.get_state_dict(net) or {}).items()}

    epoch()
    acc.save_state(FOLDER)
    acc.wait_for_everyone()
    trained = epoch()
    acc.load_state(FOLDER)
    again = epoch()
    expected = train_on_one_cpu(*parts()).state_dict()
    found = {
        "main": acc.is_main_process,
        "type": acc.distributed_type.value,
        "used": deepspeed.accelerator.get_accelerator().device_name(),
        "device": str(net.device),
        "expected device": str(runtime.device),
        "dtype": str(dtype),
        "differences": [(trained[name] - expected[name]).abs().max().item() for name in trained],
        "resumed alike": all(torch.equal(trained[name], again[name]) for name in trained),
    }
    acc.end_training()
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print(json.dumps(result), flush=True)
