"""Loading: every byte is verified, and what is loaded does not depend on the file afterwards."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import pytest
import torch
from damaged_files import invert_byte
from packaging.version import Version

import accelkit
from accelkit import CheckpointError
from accelkit.runtime.checkpoints import atomic_io

BLOCK = atomic_io.BLOCK
NUMBERS = 300_000


class WithExtraState(torch.nn.Linear):
    """Module that keeps the tensor that ``set_extra_state`` gives it."""

    def __init__(self) -> None:
        super().__init__(3, NUMBERS // 3)
        self.extra = torch.arange(float(NUMBERS))

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class Kept:
    """Object that keeps the tensors that it loads."""

    def __init__(self) -> None:
        self.own = torch.arange(float(NUMBERS))
        self.tied = None

    def state_dict(self):
        return {"own": self.own, "tied": self.tied}

    def load_state_dict(self, state):
        self.own, self.tied = state["own"], state["tied"]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_checksum_of_a_file_is_its_crc32(tmp_path, size):
    content = torch.randint(256, (size,), dtype=torch.uint8).numpy().tobytes()
    (tmp_path / "file").write_bytes(content)
    assert atomic_io.checksum(tmp_path / "file") == {"bytes": size, "crc32": zlib.crc32(content)}


@pytest.mark.parametrize("piece", [1 << 10, BLOCK - 1, BLOCK + 1])
def test_blocks_have_the_same_checksums_however_a_file_is_written(tmp_path, piece):
    content = torch.randint(256, (2 * BLOCK + 5,), dtype=torch.uint8).numpy().tobytes()
    with atomic_io.ChecksummedFile(tmp_path / "file") as file:
        for start in range(0, len(content), piece):
            file.write(content[start : start + piece])
    blocks = [zlib.crc32(content[start : start + BLOCK]) for start in range(0, len(content), BLOCK)]
    assert file.block_checksums() == blocks == [crc for crc, _ in atomic_io.block_checksums(tmp_path / "file")]
    assert file.checksum() == {"bytes": len(content), "crc32": zlib.crc32(content)}


def test_the_checksum_is_given_up_when_nobody_wants_it(tmp_path):
    (tmp_path / "file").write_bytes(bytes(3 * BLOCK))
    assert atomic_io.checksum(tmp_path / "file", lambda: False)["bytes"] == 0


def prepared():
    runtime, module, kept = accelkit.Runtime("cpu"), WithExtraState(), Kept()
    model, optimizer = runtime.prepare(module, torch.optim.Adam(module.parameters()))
    kept.tied = module.weight
    runtime.register_for_checkpointing(kept)
    return runtime, model, optimizer, kept


def test_nothing_that_was_loaded_changes_with_the_file(tmp_path):
    runtime, model, optimizer, kept = prepared()
    runtime.backward(model(torch.ones(2, 3)).sum())
    optimizer.step()
    runtime.save_state(tmp_path)

    def values():
        states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        return [value.detach().clone() for value in (model.weight, model.bias, model.extra, kept.own, kept.tied, *states)]

    before = values()
    runtime, model, optimizer, kept = prepared()
    runtime.load_state(tmp_path)
    torch.testing.assert_close(values(), before, rtol=0, atol=0)
    for file in tmp_path.glob("step-*/data/*.distcp"):
        with file.open("r+b") as target:
            target.write(bytes(os.path.getsize(file)))
    torch.testing.assert_close(values(), before, rtol=0, atol=0)


def test_a_changed_byte_in_any_block_is_found_before_the_model_changes(tmp_path):
    runtime, module = accelkit.Runtime("cpu"), torch.nn.ParameterList([torch.nn.Parameter(torch.ones(BLOCK // 8)) for _ in range(5)])
    runtime.prepare(module)
    runtime.save_state(tmp_path)
    (file,) = tmp_path.glob("step-*/data/*.distcp")
    size = file.stat().st_size
    assert size > 2 * BLOCK
    with torch.no_grad():
        for parameter in module:
            parameter.zero_()
    for place in (0, BLOCK - 1, BLOCK, 2 * BLOCK, size - 1, *torch.randint(size, (5,)).tolist()):
        invert_byte(file, place)
        with pytest.raises(CheckpointError) as caught:
            runtime.load_state(tmp_path)
        assert f"{file.name}: its checksum is wrong where it holds model_0." in caught.value.why
        assert f"model_0.{place * 5 // size}" in caught.value.why, "a tensor in that block"
        invert_byte(file, place)
    assert all(not parameter.any() for parameter in module)
    runtime.load_state(tmp_path)
    assert all(bool((parameter == 1).all()) for parameter in module)


@pytest.mark.skipif(
    sys.platform != "linux" or Version(torch.__version__) < Version("2.13"),
    reason="/proc lists mappings, and torch 2.13 says where elements are",
)
def test_weights_are_copied_from_a_mapping_of_the_file(tmp_path):
    runtime, module = accelkit.Runtime("cpu"), torch.nn.Linear(300, 300)
    runtime.prepare(module)
    runtime.save_state(tmp_path)
    mappings = []
    module.register_load_state_dict_pre_hook(lambda *_: mappings.append(Path("/proc/self/maps").read_text()))
    runtime.load_state(tmp_path)
    (file,) = tmp_path.glob("step-*/data/*.distcp")
    assert str(file) in mappings[0]
    assert str(file) not in Path("/proc/self/maps").read_text(), "nothing keeps it"
