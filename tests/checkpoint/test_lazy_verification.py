"""``load_state(verify="lazy")``: a wrong number is never used, whatever uses it first, and nothing is left once everything is verified."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import random
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from damaged_files import invert_byte

import accelkit
from accelkit import CheckpointError, UsageError
from accelkit.runtime.checkpoints import atomic_io, dcp_metadata, loading, manifest, step_dirs
from accelkit.runtime.checkpoints.block_verification import BlockVerification

BLOCK = atomic_io.BLOCK
NUMBERS = BLOCK // 4  # a tensor has the size of a block


class Model(torch.nn.Module):
    """Model of several blocks. Its generator is a buffer that C++ code reads without calling ``__torch_function__``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.linspace(0, 1, NUMBERS)) for _ in range(2))
        self.register_buffer("generator_state", torch.Generator().manual_seed(1).get_state())

    def forward(self, x):
        noise = torch.Generator()
        noise.set_state(self.generator_state)
        return (self.first * x).sum() + (self.second * torch.rand((), generator=noise)).sum()


class Linear(torch.nn.Linear):
    """Module that torch.compile traces; it does not trace the methods of torch's own modules alone."""

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


def prepared():
    runtime, model = accelkit.Runtime("cpu"), Model()
    return runtime, *runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def train_step(runtime, model, optimizer):
    optimizer.zero_grad()
    runtime.backward(model(torch.tensor(2.0)))
    optimizer.step()


def values(model, optimizer):
    state = model.state_dict()
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in (model.first, model.second)]
    return {"first": state["first"], "second": state["second"], "momenta": momenta, "generator": state["generator_state"]}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A checkpoint after one step, and the objects that have the values in it."""
    folder = tmp_path_factory.mktemp("original")
    objects = prepared()
    train_step(*objects)
    objects[0].save_state(folder)
    return folder, objects


@pytest.fixture
def saved(original, tmp_path):
    """A copy of the checkpoint, which a test may damage."""
    return Path(shutil.copytree(original[0], tmp_path / "ckpt"))


def data_file(folder):
    (file,) = folder.glob("step-0/data/*.distcp")
    return file


def damage(folder, key):
    """Change a byte in the middle of the tensor that the checkpoint stores as ``key``."""
    index = dcp_metadata.read_index(folder / "step-0/data", [data_file(folder).name])
    (place,) = (where for name, where in index.storage_data.items() if name.fqn == key)
    invert_byte(data_file(folder), place.offset + place.length // 2)


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name.startswith("accelkit-verify"):
            thread.join()


def tensors(model, optimizer):
    return [*model.parameters(), *model.buffers(), *(value for state in optimizer.state.values() for value in state.values())]


def test_an_undamaged_checkpoint_gives_the_same_numbers_and_leaves_nothing_behind(saved):
    found = []
    for mode in ("full", "lazy"):
        runtime, model, optimizer = prepared()
        runtime.load_state(saved, verify=mode)
        for _ in range(2):
            train_step(runtime, model, optimizer)
        found.append(values(model, optimizer))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    wait_for_threads()
    train_step(runtime, model, optimizer)
    assert {type(tensor) for tensor in tensors(model, optimizer)} == {torch.Tensor, torch.nn.Parameter}
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks


def uses(runtime, model, optimizer, folder):
    """What may be the first use of the weights."""
    return {
        "forward": lambda: model(torch.tensor(2.0)),
        "parameter": lambda: model.first + 1,
        "list of parameters": lambda: torch._foreach_norm(list(model.parameters())),
        "optimizer step": optimizer.step,
        "copy of the model": lambda: copy.deepcopy(model),
        "pickled parameter": lambda: pickle.dumps(model.first),
        "memory address": lambda: [model.first.data_ptr()],
        "numpy": lambda: model.first.detach().numpy(),
        "save_state": lambda: runtime.save_state(folder / "other"),
        "get_state_dict": lambda: runtime.get_state_dict(model),
        "save_model": lambda: runtime.save_model(model, folder / "exported"),
        "teardown": runtime.teardown,
    }


def test_whatever_uses_a_damaged_tensor_first_raises(saved, error_text):
    damage(saved, "model_0.first")
    runtime, model, optimizer = prepared()
    runtime.load_state(saved, verify="lazy")
    for use in uses(runtime, model, optimizer, saved).values():
        with pytest.raises(CheckpointError, match=r"distcp: its checksum is wrong where it holds model_0\.") as caught:
            use()
        runtime.load_state(saved, verify="lazy")
    assert caught.value == error_text
    assert not (saved / "other").exists()


def test_the_error_names_the_tensor_that_was_used(saved):
    damage(saved, "model_0.second")
    runtime, model, _ = prepared()
    runtime.load_state(saved, verify="lazy")
    for _ in range(2):  # each time
        with pytest.raises(CheckpointError, match=r"wrong where it holds model_0\.second"):
            model.second.sum()


class Noise(torch.nn.Module):
    """Module whose forward pass only gives a buffer to C++ code, which does not call ``__torch_function__``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("generator_state", torch.Generator().manual_seed(1).get_state())
        self.register_buffer("rest", torch.zeros(2 * NUMBERS))

    def forward(self):
        return torch.Generator().set_state(self.generator_state)


def test_values_that_only_cpp_code_reads_are_verified_before_a_forward_pass(tmp_path):
    runtime = accelkit.Runtime("cpu")
    model = runtime.prepare(Noise())
    runtime.save_state(tmp_path)
    damage(tmp_path, "model_0.generator_state")
    runtime.load_state(tmp_path, verify="lazy")
    with pytest.raises(CheckpointError, match=r"where it holds model_0\.generator_state"):
        model()


def test_a_damaged_state_of_an_optimizer_stops_its_first_step_only(saved):
    index = dcp_metadata.read_index(saved / "step-0/data", [data_file(saved).name])
    damage(saved, next(key.fqn for key in reversed(index.storage_data) if key.fqn.endswith("momentum_buffer")))
    runtime, model, optimizer = prepared()
    runtime.load_state(saved, verify="lazy")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    runtime.backward(model(torch.tensor(2.0)))
    with pytest.raises(CheckpointError, match=r"wrong where it holds optimizer_0\.state\.\d\.momentum_buffer"):
        optimizer.step()
    torch.testing.assert_close([parameter.detach() for parameter in model.parameters()], before, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["full", "lazy"])
def test_another_checkpoint_can_be_loaded_after_a_damaged_one(saved, original, mode):
    damage(saved, "model_0.first")
    runtime, model, optimizer = prepared()
    runtime.load_state(saved, verify="lazy")
    with pytest.raises(CheckpointError):
        model(torch.tensor(2.0))
    with pytest.raises(CheckpointError, match="does not exist"):
        runtime.load_state(saved / "nowhere", verify=mode)
    with pytest.raises(CheckpointError, match="checksum is wrong"):
        runtime.save_state(saved)
    runtime.load_state(original[0], verify=mode)
    torch.testing.assert_close(values(model, optimizer), values(*original[1][1:]), rtol=0, atol=0)
    runtime.teardown()


def test_the_checkpoint_may_be_removed_while_it_is_verified(saved, original):
    runtime, model, optimizer = prepared()
    runtime.load_state(saved, verify="lazy")
    shutil.rmtree(saved)
    torch.testing.assert_close(values(model, optimizer), values(*original[1][1:]), rtol=0, atol=0)


def block_verification(folder):
    """Verification of a checkpoint's blocks for which no thread was started."""
    step = folder / "step-0"
    files = manifest.read_manifest(step)
    ((name, sums),) = files["blocks"].items()
    blocks = [(name, number) for number in range(len(sums))]
    return BlockVerification(step, files, {"all": blocks}, blocks)


def test_keep_last_keeps_a_checkpoint_until_it_is_verified(saved):
    shutil.copytree(saved / "step-0", saved / "step-1")
    verification = block_verification(saved)
    step_dirs.keep_last(saved, saved / "step-1", 1)
    assert (saved / "step-0").exists()
    done = threading.Event()
    verification.start(done.set)
    verification.stop()
    verification.wait("all")
    del verification
    step_dirs.keep_last(saved, saved / "step-1", 1)
    assert not (saved / "step-0").exists()


def test_the_threads_wait_for_a_block_that_the_program_verifies(saved):
    verification = block_verification(saved)
    first = ("data/" + data_file(saved).name, 0)
    verification._claimed.add(first)
    done = threading.Event()
    verification.start(done.set)
    while len(verification._outcomes) < len(verification._order) - 1:
        time.sleep(0.01)
    assert not done.wait(0.2)
    verification._claimed.discard(first)
    verification._verify(first)
    assert done.wait(60)
    verification.stop()


def test_a_forked_process_verifies_for_itself(saved):
    verification = block_verification(saved)
    verification._claimed.add(("data/" + data_file(saved).name, 0))  # by a thread that the fork does not copy
    if (child := os.fork()) == 0:
        status = 1
        try:
            verification.wait("all")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_copies_of_a_model_are_ordinary_models(saved):
    runtime, model, _ = prepared()
    runtime.load_state(saved, verify="lazy")
    first, second = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for one in (first, second):
        assert {type(tensor) for tensor in one.parameters()} == {torch.nn.Parameter}
        assert one(torch.tensor(2.0)) == model(torch.tensor(2.0))


def test_a_checkpoint_without_checksums_of_blocks_is_verified_at_once(saved):
    damage(saved, "model_0.first")
    step = saved / "step-0"
    manifest.write_manifest(
        step, {name: value for name, value in manifest.read_manifest(step).items() if name not in ("blocks", "was_of_one")}
    )
    runtime, _, _ = prepared()
    with pytest.raises(CheckpointError, match="its checksum is wrong"):
        runtime.load_state(saved, verify="lazy")


def test_other_modes_are_refused(saved, error_text):
    with pytest.raises(UsageError) as caught:
        prepared()[0].load_state(saved, verify="never")
    assert caught.value == error_text


@pytest.mark.parametrize("kind", ["prepared", "in place", "function"])
def test_compiled_code_waits_too(tmp_path, kind):
    runtime, model = accelkit.Runtime("cpu"), Linear(3, NUMBERS // 3)
    call = model
    if kind == "in place":
        model.compile(backend="eager")
    elif kind == "prepared":
        call = torch.compile(model, backend="eager", fullgraph=True)
    else:
        call = torch.compile(lambda x: torch.nn.functional.linear(x, model.weight), backend="eager")
    runtime.prepare(call if kind == "prepared" else model)
    runtime.save_state(tmp_path)
    runtime.load_state(tmp_path, verify="lazy")
    assert call(torch.ones(3)).shape == (NUMBERS // 3,)
    damage(tmp_path, "model_0.weight")

    def load_and_call():
        runtime.load_state(tmp_path, verify="lazy")
        call(torch.ones(3))

    with pytest.raises((CheckpointError, torch._dynamo.exc.InternalTorchDynamoError), match="its checksum is wrong"):
        load_and_call()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_a_byte_that_is_damaged_anywhere_is_found_before_a_wrong_number_is_used(saved, original, seed):
    file, right = data_file(saved), values(*original[1][1:])
    places = random.Random(seed)
    for place in (places.randrange(file.stat().st_size) for _ in range(10)):
        invert_byte(file, place)
        for mode in ("full", "lazy"):
            runtime, model, optimizer = prepared()
            before = model.first.detach().clone()
            num_errors = 0
            try:
                runtime.load_state(saved, verify=mode)
            except CheckpointError:
                num_errors += 1
                assert mode == "lazy" or torch.equal(model.first, before)
            else:
                momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in (model.first, model.second)]
                found = [model.first, model.second, *momenta, model.generator_state]
                for tensor, expected in zip(found, [right["first"], right["second"], *right["momenta"], right["generator"]], strict=True):
                    try:
                        assert torch.equal(tensor, expected), f"byte {place} was used"
                    except CheckpointError:
                        num_errors += 1
                try:
                    runtime.save_state(saved / "other")
                except CheckpointError:
                    num_errors += 1
            assert num_errors > 0, f"byte {place} with verify={mode!r}"
        invert_byte(file, place)
    assert loading.load(saved)["model_0"]["first"].equal(right["first"])


@pytest.mark.parametrize("mode", ["full", "lazy"])
def test_an_error_of_loading_keeps_nothing_in_memory(saved, mode):
    invert_byte(data_file(saved), data_file(saved).stat().st_size // 2)
    runtime, model, optimizer = prepared()
    tensor = weakref.ref(model.first)
    gc.disable()
    try:
        with contextlib.suppress(CheckpointError):
            runtime.load_state(saved, verify=mode)
            train_step(runtime, model, optimizer)
        del runtime, model, optimizer
        assert tensor() is None, "a cycle of references keeps the model until garbage is collected"
    finally:
        gc.enable()
