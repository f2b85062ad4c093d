"""FSDP2 inside Accelerate, in a job: ``accelerate_sharded_program.py PRECISION STATE_DICT_TYPE FOLDER [PLUGIN_OPTION ...]``.

``hybrid`` instead of an option means two copies of a sharded model. Each process prints one line of JSON.
"""

import contextlib
import json
import sys

import torch
from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
from one_cpu import train_on_one_cpu
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit.bridges.accelerate import accelerator

MIXED, KIND, FOLDER, *OPTIONS = sys.argv[1:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


def parts():
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.AdamW(net.parameters(), lr=0.05), TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def main():
    options = dict.fromkeys(OPTIONS, True)
    mesh = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2) if options.pop("hybrid", False) else None
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Linear"],
        state_dict_type=KIND,
        cpu_ram_efficient_loading=options.pop("cpu_ram_efficient_loading", False),
        **options,
    )
    acc = accelerator(fsdp_plugin=plugin, mixed_precision=MIXED, parallelism_config=mesh)
    net, optimizer, dataset = parts()
    net, optimizer, loader = acc.prepare(net, optimizer, DataLoader(dataset, batch_size=16 // acc.num_processes))
    devices = set()

    def epoch():
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x).float(), y)
            acc.backward(loss)
            devices.update(str(tensor.device) for tensor in (x, loss, *net.parameters(), *(p.grad for p in net.parameters())))
            acc.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.full_tensor().detach().cpu() for parameter in net.parameters()]

    epoch()
    acc.save_state(FOLDER)
    acc.wait_for_everyone()
    trained = epoch()
    acc.load_state(FOLDER)
    again = epoch()
    whole = acc.get_state_dict(net)
    expected = train_on_one_cpu(*parts()).parameters()
    found = {
        "rank": acc.process_index,
        "devices": sorted(devices),
        "local": [parameter.to_local().shape[0] for parameter in net.parameters()],
        "difference": max((one - other).abs().max().item() for one, other in zip(trained, expected, strict=True)),
        "resumed alike": all(torch.equal(one, other) for one, other in zip(trained, again, strict=True)),
        "names": sorted(whole),
    }
    acc.end_training()
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print(json.dumps(result), flush=True)
