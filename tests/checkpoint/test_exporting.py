"""Weights for others: files that safetensors reads, in pieces of the size asked for, with ties and odd layouts."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

import accelkit
from accelkit import CheckpointError, UsageError
from accelkit.runtime.checkpoints import safetensors_export
from accelkit.runtime.checkpoints.safetensors_export import size_in_bytes


class Net(nn.Module):
    def __init__(self, has_views=True):
        super().__init__()
        self.embedding, self.middle, self.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        both = torch.randn(2, 6)
        self.register_buffer("left", both[0] if has_views else torch.zeros(6))  # load_model takes no such views
        self.register_buffer("right", both[1] if has_views else torch.zeros(6))
        self.register_buffer("turned", torch.randn(3, 2).t())
        self.register_buffer("number", torch.tensor(3))
        self.register_buffer("none", torch.zeros(0, 4))
        self.register_buffer("small", torch.randn(2).bfloat16())


@pytest.fixture
def rt():
    return accelkit.Runtime(accelerator="cpu", strategy="single_device")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_file_with_ties_written_once(rt, tmp_path):
    model = rt.prepare(Net())
    rt.save_model(model, tmp_path / "new" / "folder")
    assert names(tmp_path / "new" / "folder") == ["model.safetensors"]
    path = tmp_path / "new" / "folder" / "model.safetensors"
    loaded = load_file(path)
    state = model.state_dict()
    assert set(state) - set(loaded) == {"head.weight"}
    for key, tensor in loaded.items():
        assert tensor.dtype == state[key].dtype
        assert torch.equal(tensor, state[key]), key
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embedding.weight"}
    other = Net(has_views=False)
    assert load_model(other, path) == (set(), [])
    assert torch.equal(other.head.weight, model.head.weight)


def test_several_files_and_their_index(rt, tmp_path):
    model = rt.prepare(Net())
    rt.save_model(model, tmp_path)
    rt.save_model(model, tmp_path, max_shard_size=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert names(tmp_path) == sorted([*files, "model.safetensors.index.json"]), "the single file of before is gone"
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    loaded = {}
    for name in files:
        tensors = load_file(tmp_path / name)
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= 100
        assert all(index["weight_map"][key] == name for key in tensors)
        loaded |= tensors
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in loaded.values())
    assert set(model.state_dict()) - set(loaded) == {"head.weight"}

    (tmp_path / "model_card.md").write_text("")
    (tmp_path / "pytorch_model.bin").write_text("")
    rt.save_model(model, tmp_path, max_shard_size="1KB")
    assert names(tmp_path) == ["model.safetensors", "model_card.md", "pytorch_model.bin"], "only files of this kind are replaced"


def test_lazy_conjugates_and_negatives_are_written_with_their_values(rt, tmp_path):
    """safetensors would write the memory as it is, without the conjugation."""
    model = nn.Module()
    model.register_buffer("conjugate", torch.tensor([1 + 2j, 3 - 4j]).conj())
    model.register_buffer("negative", model.conjugate.imag)
    model.register_buffer("again", model.conjugate)
    rt.save_model(model, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert {name: value.tolist() for name, value in written.items()} == {"conjugate": [1 - 2j, 3 + 4j], "negative": [-2, 4]}


def test_torch_save_keeps_ties(rt, tmp_path):
    model = rt.prepare(Net())
    rt.save_model(model, tmp_path, safe_serialization=False)
    assert names(tmp_path) == ["pytorch_model.bin"]
    loaded = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert loaded["head.weight"].data_ptr() == loaded["embedding.weight"].data_ptr()
    Net().load_state_dict(loaded)


def test_a_compiled_model_has_bare_names(rt, tmp_path):
    model = torch.compile(rt.prepare(nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"))), backend="eager")
    rt.save_model(model, tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["0.bias", "0.weight"]
    assert sorted(rt.get_state_dict(model)) == ["0.bias", "0.weight"]


def test_what_cannot_be_written_is_said(rt, tmp_path, error_text):
    model = nn.Module()
    model.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(CheckpointError) as caught:
        rt.save_model(model, tmp_path)
    assert "safe_serialization=False" in caught.value.hint
    assert "torch.save" in caught.value.hint
    assert str(tmp_path) in caught.value.what
    assert caught.value == error_text
    rt.save_model(model, tmp_path, safe_serialization=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        rt.save_model(model, tmp_path / "file")
    assert str(tmp_path / "file") in caught.value.what
    assert caught.value == error_text


@given(st.integers(1, 10**6), st.sampled_from(["", "B", "KB", "kb", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", " GB"]))
def test_sizes(number, unit):
    base = 1024 if "i" in unit else 1000
    power = " KMGT".find(unit.strip()[:1].upper()) if unit.strip() not in ("", "B") else 0
    assert size_in_bytes(f"{number}{unit}") == number * base**power


@pytest.mark.parametrize("wrong", ["", "GB", "-1GB", "0", 0, -5, "5 apples", True, "1.5GB", None])
def test_what_is_no_size_is_said(wrong, error_text):
    with pytest.raises(UsageError) as caught:
        size_in_bytes(wrong)
    assert f"max_shard_size={wrong!r}" in str(caught.value)
    assert caught.value == error_text


@pytest.mark.parametrize("method", ["save_model", "get_state_dict"])
def test_only_models_have_weights(rt, tmp_path, method, error_text):
    arguments = (tmp_path,) if method == "save_model" else ()
    with pytest.raises(accelkit.UsageError) as caught:
        getattr(rt, method)({"a": 1}, *arguments)
    assert "dict" in caught.value.what
    assert caught.value == error_text


def test_a_process_that_writes_nothing_keeps_no_memory_for_the_gathered_tensors():
    placeholder = safetensors_export._gather(torch.ones(1000), is_wanted=False)
    assert placeholder.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("safe", [True, False])
def test_a_full_disk_is_not_blamed_on_the_format(rt, tmp_path, safe):
    resource = pytest.importorskip("resource")
    model = rt.prepare(nn.Linear(300, 300))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # a disk that is full after 10,000 bytes
    try:
        with pytest.raises(CheckpointError, match="could not be saved") as caught:
            rt.save_model(model, tmp_path, safe_serialization=safe)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.hint == "check the free space and the permissions"
