"""The checkpoint's format: what comes back, what is refused, and what is said of a damaged one."""

from __future__ import annotations

import collections
import json
import os
import pickle
import shutil

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelkit import CheckpointError
from accelkit.runtime.checkpoints import checkpoint
from accelkit.runtime.checkpoints.atomic_io import checksum
from accelkit.runtime.checkpoints.manifest import write_manifest
from accelkit.runtime.checkpoints.state_codec import Encoder, decode

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner)
)


@given(values)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_plain_value_comes_back_as_it_was(value):
    encoded = json.loads(json.dumps(Encoder().encode(value, "x")))
    assert repr(decode(encoded, None)) == repr(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_tensors_of_every_kind_come_back(tmp_path, dtype):
    base = torch.arange(12).reshape(3, 4).to(dtype)
    state = {"plain": base, "zero": base[0, 0], "none": base[:0], "strided": base.t()[::2], "named": torch.Size([3]), "dtype": dtype}
    checkpoint.save(tmp_path, {"model_0": state})
    loaded = checkpoint.load(tmp_path)["model_0"]
    for name, tensor in state.items():
        assert type(loaded[name]) is type(tensor)
        assert torch.equal(loaded[name], tensor) if isinstance(tensor, torch.Tensor) else loaded[name] == tensor
        if isinstance(tensor, torch.Tensor):
            assert loaded[name].dtype is dtype


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    weight = torch.randn(1000, 100)
    step = checkpoint.save(tmp_path, {"model_0": {"a": weight, "b": weight}, "model_1": {"view": weight[:1]}})
    loaded = checkpoint.load(tmp_path)
    assert loaded["model_0"]["a"] is loaded["model_0"]["b"]
    assert torch.equal(loaded["model_1"]["view"], weight[:1])
    assert sum(path.stat().st_size for path in step.rglob("*") if path.is_file()) < 1.1 * weight.nbytes


def test_lazy_conjugates_and_negatives_are_not_tied(tmp_path):
    """These views have the memory, the shape and the strides of the tensor, but other values."""
    whole = torch.tensor([1 + 2j, 3 - 4j])
    views = {"whole": whole, "conjugate": whole.conj(), "imaginary": whole.imag, "negative": whole.conj().imag}
    checkpoint.save(tmp_path, {"state": views})
    loaded = checkpoint.load(tmp_path)["state"]
    assert {name: value.tolist() for name, value in loaded.items()} == {name: value.tolist() for name, value in views.items()}


def test_special_values_and_ordered_dicts(tmp_path):
    state = {"nan": float("nan"), "inf": float("-inf"), "order": collections.OrderedDict(b=1, a=2), "device": torch.device("cpu", 0)}
    checkpoint.save(tmp_path, {"custom_0": state})
    loaded = checkpoint.load(tmp_path)["custom_0"]
    assert loaded["nan"] != loaded["nan"]
    assert loaded["inf"] == float("-inf")
    assert list(loaded["order"]) == ["b", "a"]
    assert loaded["device"] == torch.device("cpu", 0)


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Thing(), "Thing"),
        (numpy.array(["text"]), "numpy.ndarray"),
        (lambda: 0, "builtins.function"),
        (torch.zeros(2).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "meta"),
        ({(1, 2): 3}, "(1, 2)"),
    ],
)
def test_what_could_not_be_loaded_safely_is_refused_when_saving(tmp_path, value, why, error_text):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path / "ckpt", {"custom_0": {"deep": [0, value]}})
    assert "custom_0.deep.1" in caught.value.what
    assert why in str(caught.value)
    assert caught.value == error_text
    assert not (tmp_path / "ckpt").exists(), "nothing was written"


def save_two(root):
    checkpoint.save(root, {"model_0": {"w": torch.zeros(100)}})
    return checkpoint.save(root, {"model_0": {"w": torch.ones(100)}})


def test_steps_are_numbered_and_latest_follows(tmp_path, error_text):
    assert save_two(tmp_path) == tmp_path / "step-1"
    assert (tmp_path / "LATEST").read_text().split()[0] == "step-1"
    assert checkpoint.load(tmp_path)["model_0"]["w"].sum() == 100
    assert checkpoint.load(tmp_path / "step-0")["model_0"]["w"].sum() == 0
    assert checkpoint.save(tmp_path, {}, step=7) == tmp_path / "step-7"
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path, {}, step=7)
    assert "step-7" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize("latest", [None, "step-9", "../elsewhere", ""])
def test_without_a_latest_that_is_there_the_newest_step_is_taken(tmp_path, latest):
    save_two(tmp_path)
    (tmp_path / "LATEST").unlink()
    if latest is not None:
        (tmp_path / "LATEST").write_text(latest)
    assert checkpoint.find(tmp_path) == tmp_path / "step-1"


def test_a_latest_that_somebody_wrote_is_followed(tmp_path):
    save_two(tmp_path)
    (tmp_path / "LATEST").write_text("step-0\n")
    assert checkpoint.find(tmp_path) == tmp_path / "step-0"


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda step: flip(step / "data" / "__0_0.distcp"), "data/__0_0.distcp"),
        (lambda step: os.truncate(step / "data" / "__0_0.distcp", 10), "10 bytes"),
        (lambda step: (step / "data" / ".metadata").unlink(), "data/.metadata"),
        (lambda step: shutil.rmtree(step / "data"), "data/"),
        (lambda step: (step / "manifest.json").write_text("{"), "manifest.json"),
        (lambda step: (step / "manifest.json").write_text("[]"), "manifest.json"),
    ],
)
def test_a_damaged_checkpoint_names_the_file_and_the_one_before(tmp_path, damage, why, error_text):
    step = save_two(tmp_path)
    size = (step / "data" / "__0_0.distcp").stat().st_size
    damage(step)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path)
    assert f"{tmp_path / 'step-1'}" in caught.value.what
    assert why in caught.value.why
    assert f"{tmp_path / 'step-0'}" in caught.value.hint
    assert str(caught.value).replace(str(size), "<size>") == error_text
    assert checkpoint.load(tmp_path / "step-0")["model_0"]["w"].sum() == 0


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_damage_anywhere_is_called_damage(tmp_path, name, error_text):
    """What cannot be read because of it is not what is said."""
    step = save_two(tmp_path)
    path = step / "data" / name
    whole = path.read_bytes()
    said = set()
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(step)
        said.add(str(caught.value))
    (text,) = said
    assert f"data/{name}" in text
    assert text == error_text
    path.write_bytes(whole)
    assert checkpoint.load(step)["model_0"]["w"].sum() == 100


def test_tensors_of_every_form_come_back(tmp_path):
    base = torch.arange(24.0)
    tensors = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "transposed": base.reshape(4, 6).t(),
        "part": base[3:9],
        "complex": torch.complex(base, -base),
        "narrow": base.bfloat16(),
        "flags": base > 3,
    }
    checkpoint.save(tmp_path, {"model_0": tensors})
    loaded = checkpoint.load(tmp_path)["model_0"]
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor), name
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), f"{name} keeps more memory than it needs"


class Forged:
    def __reduce__(self):
        return os.mkdir, ("forged",)


@pytest.mark.parametrize(("forged", "why"), [(Forged(), "posix.mkdir"), ({}, "dict")])
def test_an_index_runs_no_code(tmp_path, monkeypatch, forged, why, error_text):
    monkeypatch.chdir(tmp_path)
    step = save_two(tmp_path)
    index = step / "data" / ".metadata"
    index.write_bytes(pickle.dumps(forged))
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["files"]["data/.metadata"] = checksum(index)
    write_manifest(step, manifest)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path)
    assert why in str(caught.value)
    assert caught.value == error_text
    assert not (tmp_path / "forged").exists()


@pytest.mark.parametrize(("found", "text"), [("accelkit.checkpoint/9", "9.9"), ("other/1", "'other/1'")])
def test_another_format_is_said(tmp_path, found, text, error_text):
    step = save_two(tmp_path)
    manifest = json.loads((step / "manifest.json").read_text())
    manifest |= {"format": found, "versions": {"accelkit": "9.9"}}
    (step / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path)
    assert text in str(caught.value)
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ({"format": "accelkit.checkpoint/9", "versions": []}, "another version"),
        ({"format": "accelkit.checkpoint/1", "files": {}}, "it has no list of objects"),
    ],
)
def test_a_manifest_with_values_of_other_types_is_an_error(tmp_path, manifest, text):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=text):
        checkpoint.load(tmp_path)


def test_a_file_is_no_checkpoint(tmp_path):
    (tmp_path / "model.pt").touch()
    with pytest.raises(CheckpointError, match="it is a file"):
        checkpoint.load(tmp_path / "model.pt")


def test_where_there_is_none(tmp_path, error_text):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path / "nowhere")
    assert "nowhere" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path)
    assert "manifest.json" in caught.value.why
    assert caught.value == error_text


def test_a_disk_that_refuses_is_an_error_and_harms_nothing(tmp_path, error_text):
    save_two(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path / "file", {})
    assert str(tmp_path / "file") in caught.value.what
    assert "FileExistsError" in caught.value.why
    assert caught.value == error_text
    assert isinstance(caught.value.__cause__, OSError)


def test_what_a_kill_left_is_removed_by_the_next_save(tmp_path):
    (tmp_path / "step-3.tmp" / "data").mkdir(parents=True)
    save_two(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step-0", "step-1"]
