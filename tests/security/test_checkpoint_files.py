"""A checkpoint is data: no file in its folder, and no link to or from it, makes the host run code, read or write elsewhere, or wait."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sys
import zlib

import pytest
import torch

import accelkit
from accelkit.runtime.checkpoints import checkpoint, dcp_metadata
from accelkit.runtime.checkpoints.manifest import CHECKSUM

STATE = {"model": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(3)}, "optimizer": {"lr": 0.125, "betas": (0.9, 0.999)}}

pytestmark = pytest.mark.timeout(60)  # a pipe that is opened would keep the test waiting for ever


@pytest.fixture
def root(tmp_path):
    """A folder with one checkpoint, ``step-0``."""
    checkpoint.save(tmp_path / "ckpt", STATE)
    return tmp_path / "ckpt"


def rewrite(step, change=lambda manifest: None):
    """Change the manifest as somebody who knows the format would: with the right checksums of everything."""
    manifest = json.loads((step / "manifest.json").read_text())
    for name in manifest["files"]:
        if (step / name).is_file():
            content = (step / name).read_bytes()
            manifest["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    change(manifest)
    content = json.dumps(manifest).encode()
    (step / "manifest.json").write_bytes(content)
    (step / CHECKSUM).write_text(f"{len(content)} {zlib.crc32(content):08x}\n")


def refused(path):
    """Load it; the error's fields."""
    with pytest.raises(accelkit.CheckpointError) as caught:
        checkpoint.load(path)
    return caught.value.what, caught.value.why


@pytest.mark.parametrize("content", [{"dtype": "os"}, {"dtype": "save"}, {"dtype": "nn"}, {"empty": {"size": [0], "dtype": "ops"}}])
def test_a_manifest_names_dtypes_and_nothing_else_of_torch(root, content):
    def change(manifest):
        manifest["structure"]["optimizer"] = {"dict": [["is_better", content]]}

    rewrite(root / "step-0", change)
    with pytest.raises(accelkit.CheckpointError) as caught:
        checkpoint.load(root)
    assert "manifest.json" in caught.value.why


def test_an_enumeration_is_looked_up_without_running_a_modules_code(root, tmp_path, monkeypatch):
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    raise SystemExit(f'ran for {name}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import lazy  # noqa: F401

    def change(manifest):
        manifest["structure"]["optimizer"] = {"dict": [["mode", {"enum": ["lazy", "Mode", "A"]}]]}

    rewrite(root / "step-0", change)
    with pytest.raises(accelkit.CheckpointError, match="lazy"):
        checkpoint.load(root)


def building_on(module, name):
    """A pickle that, after an index, sets an attribute on a class that an index may name."""
    return (
        pickle.PROTO + b"\x02" + pickle.GLOBAL + f"{module}\n{name}\n".encode()
        + pickle.NONE + pickle.EMPTY_DICT + pickle.BINUNICODE + (8).to_bytes(4, "little") + b"__repr__" + pickle.NONE + pickle.SETITEM
        + pickle.TUPLE2 + pickle.BUILD + pickle.STOP
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("pathlib", "PurePosixPath"),
    ],
)
def test_an_index_patches_no_class(root, module, name):
    index = root / "step-0" / "data" / dcp_metadata.NAME
    index.write_bytes(building_on(module, name))
    rewrite(root / "step-0")
    _, why = refused(root)
    assert "BUILD" in why
    assert name in why


def test_an_index_of_python_3_11_2_loads(root, monkeypatch):
    """Until 3.11.3, Python 3.11 pickles a member of an enum as ``getattr(cls, name)``."""
    index = dcp_metadata.read_index(root / "step-0" / "data", {"__0_0.distcp"})
    members = dcp_metadata.Metadata.__module__, "_MEM_FORMAT_ENCODING"
    enumeration = getattr(sys.modules[members[0]], members[1])
    monkeypatch.setattr(enumeration, "__reduce_ex__", lambda member, protocol: (getattr, (type(member), member.name)))
    text = pickle.dumps(index)
    assert b"getattr" in text
    (root / "step-0" / "data" / dcp_metadata.NAME).write_bytes(text)
    rewrite(root / "step-0")
    assert torch.equal(checkpoint.load(root)["model"]["weight"], STATE["model"]["weight"])


def test_an_index_reads_no_other_attribute(root):
    text = (
        pickle.PROTO + b"\x02" + pickle.GLOBAL + b"builtins\ngetattr\n" + pickle.GLOBAL
        + b"torch.distributed.checkpoint.metadata\nMetadata\n" + pickle.BINUNICODE + (8).to_bytes(4, "little") + b"__init__"
        + pickle.TUPLE2 + pickle.REDUCE + pickle.STOP
    )  # fmt: skip
    (root / "step-0" / "data" / dcp_metadata.NAME).write_bytes(text)
    rewrite(root / "step-0")
    _, why = refused(root)
    assert "'__init__'" in why


def test_every_changed_bit_of_every_file_is_found(root):
    """A sample; ``make soak`` changes 10,000."""
    change_bits(root, 150, random.Random(0))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_changed_bits_are_found(root):
    change_bits(root, 10_000, random.Random(1))


def test_the_second_format_had_no_checksum_of_its_manifest(root):
    rewrite(root / "step-0", lambda manifest: manifest.update(format="accelkit.checkpoint/2"))
    (root / "step-0" / CHECKSUM).unlink()
    assert checkpoint.load(root)["optimizer"] == STATE["optimizer"]
    rewrite(root / "step-0", lambda manifest: manifest.update(format="accelkit.checkpoint/3"))
    (root / "step-0" / CHECKSUM).unlink()
    assert CHECKSUM in refused(root)[1]


def change_bits(root, count, rng):
    step = root / "step-0"
    files = sorted(path for path in step.rglob("*") if path.is_file())
    assert {path.name for path in files} >= {"manifest.json", CHECKSUM, dcp_metadata.NAME}
    for number in range(count):
        path = files[number % len(files)]
        content = path.read_bytes()
        place = rng.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(accelkit.CheckpointError):
            checkpoint.load(root)
        path.write_bytes(content)
    checkpoint.load(root)


def test_a_data_file_that_the_manifest_does_not_list_is_not_used(root):
    def change(manifest):
        (name,) = [name for name in manifest["files"] if name.endswith(".distcp")]
        del manifest["files"][name]

    rewrite(root / "step-0", change)
    _, why = refused(root)
    assert ".distcp" in why


@pytest.mark.parametrize("name", ["../../../private.pt", "/etc/passwd", "..", "a/b", "data\\x", ""])
def test_an_index_names_files_beside_itself_only(root, tmp_path, name):
    shutil.copy(next((root / "step-0" / "data").glob("*.distcp")), tmp_path / "private.pt")
    index = dcp_metadata.read_index(root / "step-0" / "data", {"__0_0.distcp"})
    for where in index.storage_data.values():
        where.relative_path = name
    (root / "step-0" / "data" / dcp_metadata.NAME).write_bytes(pickle.dumps(index))
    rewrite(root / "step-0")
    _, why = refused(root)
    assert repr(name) in why


@pytest.mark.parametrize("name", ["../../outside.bin", "data/../../../outside.bin", "/etc/passwd", "data"])
def test_a_manifest_names_files_of_its_own_folder_only(root, tmp_path, name):
    (tmp_path / "outside.bin").write_bytes(b"secret")
    rewrite(root / "step-0", lambda manifest: manifest["files"].update({name: {"bytes": 6, "crc32": zlib.crc32(b"secret")}}))
    _, why = refused(root)
    assert repr(name) in why


@pytest.mark.parametrize("text", ["../outside/step-5", "/", "step-5/..", "step-00", "step-٣", "x" * 100_000])
def test_latest_names_a_step_beside_itself(root, tmp_path, text):
    checkpoint.save(tmp_path / "outside", {"model": {"stolen": torch.ones(1)}}, step=5)
    (root / "LATEST").write_text(text)
    assert "stolen" not in checkpoint.load(root)["model"]


def test_no_changed_bit_of_latest_leads_to_an_older_step(root):
    for _ in range(3):
        checkpoint.save(root, STATE)
    assert checkpoint.find(root) == root / "step-3"
    content = (root / "LATEST").read_bytes()
    for place in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (root / "LATEST").write_bytes(damaged)
        assert checkpoint.find(root) == root / "step-3", damaged


@pytest.mark.parametrize(
    "name", ["LATEST", "step-0/manifest.json", "step-0/" + CHECKSUM, "step-0/data/.metadata", "step-0/data/__0_0.distcp"]
)
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_pipe_or_a_link_is_no_file_of_a_checkpoint(root, tmp_path, name, kind):
    path = root / name
    shutil.move(path, tmp_path / "moved")
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "moved")
    if name == "LATEST":  # it is a hint where to begin: the newest step is found without it
        checkpoint.load(root)
        return
    _, why = refused(root)
    assert path.name in why
    assert "regular file" in why


def test_saving_follows_no_link_that_somebody_left(root, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (root / "LATEST.tmp").symlink_to(victim)
    checkpoint.save(root, STATE)
    assert victim.read_text() == "precious"
    assert (root / "LATEST").read_text().startswith("step-1 ")
    assert not (root / "LATEST.tmp").exists()


def test_saving_goes_on_beside_files_that_are_no_steps(root, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (root / "step-7.tmp").write_text("a file of somebody's")
    (root / "step-8.tmp").symlink_to(precious)
    (root / "step-9x").mkdir()
    (root / "step-٣").mkdir()
    (root / "step-007").mkdir()
    (root / "step-1").symlink_to(precious)
    path = checkpoint.save(root, STATE, keep_last=1)
    assert path.name == "step-2"
    assert (precious / "file").read_text() == "kept"
    assert not (root / "step-0").exists()
    assert (root / "step-007").exists()
    assert checkpoint.find(root) == path


def test_a_folder_of_data_that_is_a_link_is_refused(root, tmp_path):
    (root / "step-0" / "data").rename(tmp_path / "elsewhere")
    (root / "step-0" / "data").symlink_to(tmp_path / "elsewhere")
    assert refused(root)[1] == "data: it is a symbolic link"


@pytest.mark.skipif(os.name != "posix", reason="sparse files are made with truncate")
def test_a_manifest_of_gigabytes_is_not_read(root):
    os.truncate(root / "step-0" / "manifest.json", 3 * 2**30)
    assert "larger than 200000000 bytes" in refused(root)[1]
