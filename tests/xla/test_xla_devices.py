"""Which XLA device is taken, and several of them: by the partitioner, by processes, and what cannot be."""

from __future__ import annotations

import json

import pytest

import accelkit

TRAIN = """
import json, os, sys
import torch, accelkit
from torch.utils.data import DataLoader, TensorDataset
def train(rt):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(48, 8, generator=generator).double(), torch.randint(0, 3, (48,), generator=generator))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = rt.prepare(model, optimizer, DataLoader(data, batch_size=8 // rt.num_processes))
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        rt.backward(loss)
        rt.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(rt.reduce(loss.detach(), "mean").item())
    return losses, [float(value) for tensor in rt.get_state_dict(model).values() for value in tensor.cpu().flatten()]
"""
MAIN = """
rt = accelkit.Runtime("xla", **json.loads(os.environ.get("OPTIONS", "{}")))
result = train(rt)
if rt.is_main_process:
    print(json.dumps([rt.state.strategy, rt.num_processes, *result]))
"""


@pytest.fixture(scope="module")
def alone():
    """What one device computes."""
    namespace: dict = {}
    exec(TRAIN, namespace)
    losses, values = namespace["train"](accelkit.Runtime("cpu"))
    return losses, values


def last_line(out):
    return json.loads(out.splitlines()[-1])


def agrees(result, alone):
    for mine, theirs in zip(result, alone, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-10, abs=1e-12)


def test_four_devices_as_one(run, alone):
    check = """
import torch_xla
specs = {torch_xla._XLAC._get_xla_sharding_spec(batch) for batch in rt.prepare(DataLoader(torch.zeros(8, 2), batch_size=4))}
print(*specs)
"""
    options = {"CPU_NUM_DEVICES": "4", "OPTIONS": json.dumps({"strategy": "xla", "devices": 4})}
    specs, result = run(TRAIN + MAIN.replace("if rt.is_main", check + "if rt.is_main"), **options).splitlines()[-2:]
    strategy, processes, *rest = json.loads(result)
    assert (strategy, processes) == ("xla", 1)
    assert specs == "{devices=[4,1]0,1,2,3}"
    agrees(rest, alone)


def test_the_partitioner_uses_all_devices_or_none(run):
    program = "import accelkit\nrt = accelkit.Runtime('xla', strategy='xla', devices=2)\nrt.device"
    out = run(program, code=1, CPU_NUM_DEVICES="4")
    assert "strategy 'xla' cannot use 2 of the 4 devices of this process" in out
    with pytest.raises(accelkit.UnsupportedError, match="'xla'"):
        accelkit.Runtime("cpu", strategy="xla")


@pytest.mark.parametrize(
    "launcher",
    [
        ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        ("-m", "accelkit", "launch", "--accelerator", "xla", "--devices", "2"),
    ],
    ids=["torchrun", "accelkit launch"],
)
def test_two_processes_of_one_device(run, alone, launcher):
    out = run(TRAIN + MAIN, *launcher)
    strategy, processes, *rest = json.loads(next(line[line.index("[") :] for line in out.splitlines() if '["ddp"' in line))
    assert (strategy, processes) == ("ddp", 2)
    agrees(rest, alone)


def test_two_processes_from_a_function(run, alone):
    program = TRAIN + "if __name__ == '__main__':\n    print(json.dumps(accelkit.Runtime('xla', devices=2).launch(train)))"
    agrees(last_line(run(program)), alone)


GLOO = """
import os, torch, torch.distributed as dist, accelkit
from accelkit import ProcessGroupOptions
{before}
rt = accelkit.Runtime("xla"{options})
try:
    rt.device
except accelkit.UnsupportedError as error:
    # In one piece: torchrun's workers are unbuffered, and print writes part after part.
    os.write(1, (error.what + " | " + error.why + chr(10)).encode())
"""


def test_gloo_alone_reduces_nothing_and_the_runtime_refuses_it(run):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    silent = "dist.init_process_group('gloo')\nimport torch_xla\nx = torch.ones(2, device='xla')\ndist.all_reduce(x)\nprint(x.tolist())"
    assert run("import torch, torch.distributed as dist\n" + silent, *torchrun).count("[1.0, 1.0]") == 2, "torch's silence"
    for before, options in (
        ("", ", process_group=ProcessGroupOptions(process_group_backend='gloo')"),
        ("dist.init_process_group('gloo')", ""),
    ):
        out = run(GLOO.format(before=before, options=options), *torchrun)
        assert out.count("the process group does not reduce tensors on xla | ") == 2
        assert "the sum of a 1 from each of 2 processes is 1" in out, "the other one may find that the first has gone"


COLLECTIVES = """
import os, torch, torch.distributed as dist, accelkit
rt = accelkit.Runtime("xla")
device, rank = rt.device, rt.process_index
def on_device(*values):
    return torch.tensor(values, dtype=torch.float32, device=device)
def show(name, *tensors):
    os.write(1, f"{rank} {name} {[tensor.tolist() for tensor in tensors]}{chr(10)}".encode())  # in one piece
x = on_device(rank + 1.0, 10.0)
dist.all_reduce(x, dist.ReduceOp.MAX); show("all_reduce", x)
x = on_device(float(rank)); dist.broadcast(x, 1); show("broadcast", x)
parts = [on_device(0.0), on_device(0.0)]; dist.all_gather(parts, on_device(float(rank))); show("all_gather", *parts)
whole = torch.zeros(2, device=device); dist.all_gather_into_tensor(whole, on_device(float(rank))); show("into_tensor", whole)
mine = on_device(0.0); dist.reduce_scatter_tensor(mine, on_device(rank + 1.0, rank + 2.0)); show("reduce_scatter", mine)
mine = on_device(0.0); dist.scatter(mine, [on_device(5.0), on_device(6.0)] if rank == 0 else None); show("scatter", mine)
parts = [on_device(0.0), on_device(0.0)] if rank == 0 else None
dist.gather(on_device(float(rank)), parts); show("gather", *(parts or []))
x = on_device(rank + 1.0); dist.reduce(x, 0); show("reduce", *([x] if rank == 0 else []))
out = torch.zeros(2, device=device); dist.all_to_all_single(out, on_device(10.0 * rank, 10.0 * rank + 1)); show("all_to_all", out)
x = on_device(7.0)
dist.send(x + 1, 1) if rank == 0 else dist.recv(x, 0)
show("recv", x)
ring = [dist.P2POp(dist.irecv, x, 1 - rank), dist.P2POp(dist.isend, on_device(rank + 3.0), 1 - rank)]
for work in dist.batch_isend_irecv(ring) + dist.batch_isend_irecv(ring[::-1]): work.wait(); assert work.is_completed()
show("ring", x)
parts = [torch.zeros(rank + 1, device=device), torch.zeros(rank + 1, device=device)]
dist.all_to_all(parts, [on_device(rank), on_device(rank, 5.0)]); show("all_to_all_list", *parts)
dist.barrier()
group = dist.new_group([0, 1]); x = on_device(1.0); dist.all_reduce(x, group=group); show("new_group", x)
show("objects", torch.tensor(rt.gather_for_metrics([rank, rank])))
"""


def test_collectives_through_the_host(run):
    out = run(COLLECTIVES, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for rank in (0, 1):
        expected = {
            "all_reduce": [[2.0, 10.0]],
            "broadcast": [[1.0]],
            "all_gather": [[0.0], [1.0]],
            "into_tensor": [[0.0, 1.0]],
            "reduce_scatter": [[3.0 + 2 * rank]],
            "scatter": [[5.0 + rank]],
            "gather": [[0.0], [1.0]] if rank == 0 else [],
            "reduce": [[3.0]] if rank == 0 else [],
            "all_to_all": [[float(rank), 10.0 + rank]],
            "recv": [[7.0 + rank]],
            "ring": [[4.0 - rank]],
            "all_to_all_list": [[0.0], [1.0]] if rank == 0 else [[0.0, 5.0], [1.0, 5.0]],
            "new_group": [[2.0]],
            "objects": [[0, 0, 1, 1]],
        }
        for name, values in expected.items():
            assert f"{rank} {name} {values}" in out


def test_torch_xlas_own_launcher_cannot_do_several_on_the_cpu(run):
    program = """
import accelkit, torch_xla
def f(index):
    try:
        print(accelkit.Runtime("xla").state.cluster, flush=True)
    except accelkit.UnsupportedError as error:
        print(error, flush=True)
if __name__ == "__main__":
    torch_xla.launch(f)
"""
    out = run(program, CPU_NUM_DEVICES="2")
    assert out.count("torch_xla.launch does not support several CPU devices") == 2
    assert "pytorch/xla/issues/9089" in out
    assert "use strategy='xla', which uses all devices from one process" in out
    assert run(program).split() == ["xla"], "one device is one process"


def test_xla_on_the_cpu_is_taken_by_name_only(monkeypatch):
    assert accelkit.select("xla").accelerator.name == "xla"
    assert accelkit.select().accelerator.name == "cpu"
    with pytest.raises(accelkit.UnavailableError, match="tpu") as caught:
        accelkit.select("tpu")
    assert "xla: it is simulated" in caught.value.why
    monkeypatch.delenv("PJRT_DEVICE")
    with pytest.raises(accelkit.UnavailableError, match="PJRT_DEVICE") as caught:
        accelkit.select("xla")
    assert "PJRT_DEVICE=CPU" in caught.value.hint
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    with pytest.raises(accelkit.UnavailableError, match="TPU"):
        accelkit.select("xla")


def test_fsdp_needs_what_xla_has_not():
    with pytest.raises(accelkit.UnsupportedError, match="xla .*'fsdp'") as caught:
        accelkit.Runtime("xla", strategy="fsdp")
    assert "torch.xla" in caught.value.why


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    assert accelkit.Runtime("xla", devices=[1]).state.device == "xla:1"
    with pytest.raises(accelkit.DevicesError):
        accelkit.Runtime("xla", devices=[2])
    monkeypatch.setenv("CPU_NUM_DEVICES", "many")
    with pytest.raises(accelkit.UsageError, match="CPU_NUM_DEVICES='many'"):
        accelkit.Runtime("xla")


def test_a_device_that_comes_after_the_first_backward_pass(run):
    before = "import torch, torch_xla, accelkit\ntorch.ones(1, requires_grad=True).sum().backward()\n"
    out = run(before + "accelkit.Runtime('xla').device", code=1)
    assert "a backward pass on xla:0 failed in this process" in out
    assert "create the Runtime and read its .device before the first backward pass" in out


def test_xla_does_not_become_the_cpu_because_a_library_is_missing(run, tmp_path):
    """torch_xla silently uses the CPU if it cannot import the library of the device that the machine seems to have."""
    (tmp_path / "libneuronxla").mkdir()
    (tmp_path / "libneuronxla" / "__init__.py").write_text("")
    out = run(
        """
import os
del os.environ["PJRT_DEVICE"]
import accelkit
try:
    print(accelkit.Runtime("xla").device)
except accelkit.UnavailableError as error:
    print(error.what, "|", error.why)
print(os.environ["PJRT_DEVICE"])
"""
    )
    assert out.splitlines() == [
        "XLA cannot use this machine's NEURON | torch_xla did not find the library for NEURON, and would use CPU",
        "NEURON",
    ]
