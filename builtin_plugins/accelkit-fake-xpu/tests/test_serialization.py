"""Saving tensors, copying them, and sending them to other processes."""

import copy
import io
import pickle

import pytest
import torch


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, "fake_xpu:1"),
        ("cpu", "cpu"),
        ("fake_xpu", "fake_xpu:0"),
        ("fake_xpu:0", "fake_xpu:0"),
        (torch.device("fake_xpu:1"), "fake_xpu:1"),
        ({"fake_xpu:1": "cpu"}, "cpu"),
        ({"fake_xpu:1": "fake_xpu:0"}, "fake_xpu:0"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.fake_xpu(0), "fake_xpu:0"),
    ],
    ids=["none", "cpu", "type", "device", "torch.device", "dict to cpu", "dict", "function to cpu", "function"],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(map_location, expected, weights_only, device):
    x = torch.arange(6.0, device=device).view(2, 3)
    loaded = torch.load(saved({"x": x, "y": x[0]}), map_location=map_location, weights_only=weights_only)
    assert loaded["x"].device == torch.device(expected)
    assert loaded["x"].tolist() == x.tolist()
    loaded["x"][0, 0] = 9
    assert loaded["y"][0].item() == 9, "what shared memory shares it still"


def test_from_the_cpu_to_the_device():
    loaded = torch.load(saved(torch.arange(3)), map_location="fake_xpu:1")
    assert loaded.device == torch.device("fake_xpu:1")
    assert loaded.tolist() == [0, 1, 2]


def test_a_device_that_is_not_there_is_named(run, tmp_path):
    torch.save(torch.ones(1, device="fake_xpu:1"), tmp_path / "x.pt")
    result = run(f"torch.load({str(tmp_path / 'x.pt')!r})", check=False, FAKE_XPU_DEVICES="1")
    assert "torch.fake_xpu.device_count() is 1" in result.stderr
    assert "map_location" in result.stderr


@pytest.mark.parametrize("clone", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "copy", "pickle"])
@pytest.mark.parametrize(
    "make", [lambda x: x, torch.nn.Parameter, lambda x: torch.nn.Linear(2, 2).to(x.device)], ids=["tensor", "parameter", "module"]
)
def test_copies_are_on_the_device(clone, make, device):
    value = make(torch.ones(2, 2, device=device))
    copied = clone(value)
    assert type(copied) is type(value)
    tensors = list(copied.parameters()) if isinstance(copied, torch.nn.Module) else [copied]
    assert {tensor.device for tensor in tensors} == {device}


def test_a_state_dict_round_trip(device):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2, device=device)).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    twin = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(device)
    other = torch.optim.AdamW(twin.parameters())
    twin.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    for mine, theirs in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert {value["exp_avg"].device for value in other.state.values()} == {device}


def test_storages(device):
    storage = torch.arange(3.0, device=device).untyped_storage()
    assert storage.device == device
    assert storage.is_fake_xpu
    assert storage.cpu().device.type == "cpu"
    assert storage.clone().device == device
    assert torch.UntypedStorage(8, device=device).nbytes() == 8


def test_other_processes_are_refused_clearly(device):
    with pytest.raises(RuntimeError, match="fake_xpu tensors cannot be sent to another process"):
        torch.multiprocessing.get_context("spawn").SimpleQueue().put(torch.ones(2, device=device))
