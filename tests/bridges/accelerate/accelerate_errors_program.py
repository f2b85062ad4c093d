"""What must be an error, each in a process of its own.

``accelerate_errors_program.py WHAT`` prints the type and text of the error, or what there is.
"""

import contextlib
import os
import sys

import torch
from accelerate import ParallelismConfig

from accelkit import AccelkitError, Runtime
from accelkit.bridges.accelerate import accelerator, install
from accelkit.bridges.accelerate.tensor_parallel import check_split_model, set_up_tensor_parallelism


def sharding(version=2):
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=version)


def fsdp1():
    return accelerator("fake_xpu", fsdp_plugin=sharding(1))


def installed_fsdp1():
    from accelerate import Accelerator

    install("fake_xpu")
    return Accelerator(fsdp_plugin=sharding(1))


def fsdp1_by_variable():
    """As ``accelerate launch --use_fsdp`` asks for it."""
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    return accelerator("fake_xpu")


def fsdp_on_the_cpu():
    return accelerator("cpu", fsdp_plugin=sharding())


def fsdp_in_fp16():
    return accelerator("fake_xpu", fsdp_plugin=sharding(), mixed_precision="fp16")


def fsdp_too_late():
    accelerator("fake_xpu")
    return accelerator("fake_xpu", fsdp_plugin=sharding())


def deepspeed():
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    sys.modules["deepspeed"] = None  # as if it were not installed
    return accelerator("fake_xpu")


def megatron():
    os.environ["ACCELERATE_USE_MEGATRON_LM"] = "true"
    return accelerator("fake_xpu")


def megatron_by_argument():
    return accelerator("fake_xpu", megatron_lm_plugin=object())


def tensor_parallelism_by_plugin():
    from accelerate.utils import TorchTensorParallelPlugin

    return accelerator("fake_xpu", torch_tp_plugin=TorchTensorParallelPlugin(tp_size=2))


def tensor_parallelism_and_fsdp():
    os.environ |= {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}
    return accelerator("fake_xpu", fsdp_plugin=sharding())


def tensor_parallelism_and_deepspeed():
    """What ``Accelerator`` checks once DeepSpeed is imported."""
    arguments = {"parallelism_config": ParallelismConfig(tp_size=2)}
    return set_up_tensor_parallelism(arguments, {"ACCELERATE_USE_DEEPSPEED": "true"}, Runtime("fake_xpu"), "no")


def tensor_parallelism_on_the_cpu():
    return accelerator("cpu", parallelism_config=ParallelismConfig(tp_size=2))


def tensor_parallelism_in_fp16():
    return accelerator("fake_xpu", parallelism_config=ParallelismConfig(tp_size=2), mixed_precision="fp16")


def tensor_parallelism_in_an_older_accelerate():
    """Another Accelerate is stood in for by this one, with another version."""
    import accelerate

    accelerate.__version__ = "1.14.0"
    return accelerator("fake_xpu", parallelism_config=ParallelismConfig(tp_size=2))


def context_parallelism():
    return accelerator("fake_xpu", parallelism_config=ParallelismConfig(cp_size=2))


def sequence_parallelism():
    os.environ |= {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_SP_SIZE": "2"}
    return accelerator("fake_xpu")


def tensor_parallelism_in_one_process():
    return accelerator("fake_xpu", parallelism_config=ParallelismConfig(tp_size=2))


def model_that_is_not_sharded():
    """A model whose gradients nothing would average over the two groups of processes that train on different samples."""
    return check_split_model(torch.nn.Linear(1, 1), ParallelismConfig(tp_size=2, dp_shard_size=2), torch.device("cpu"))


def split_model_elsewhere():
    """A model of which a process has its part on another device than its own."""
    from torch.distributed import HashStore, init_process_group
    from torch.distributed.tensor import DTensor, init_device_mesh

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(1, 1)
    model.weight = torch.nn.Parameter(DTensor.from_local(model.weight.detach(), init_device_mesh("cpu", (1,))))
    return check_split_model(model, ParallelismConfig(tp_size=2), torch.device("meta"))


def sagemaker():
    os.environ["ACCELERATE_USE_SAGEMAKER"] = "true"
    return accelerator("fake_xpu")


def cpu_affinity():
    os.environ["ACCELERATE_CPU_AFFINITY"] = "1"
    return accelerator("fake_xpu")


def fp8():
    return accelerator("fake_xpu", mixed_precision="fp8")


def fp8_recipe():
    from accelerate.utils import TERecipeKwargs

    recipe = TERecipeKwargs.__new__(TERecipeKwargs)  # its constructor wants the package
    return accelerator("fake_xpu", kwargs_handlers=[recipe])


def strategy():
    os.environ["ACCELKIT_STRATEGY"] = "fsdp"
    return accelerator("fake_xpu")


def no_float16():
    return accelerator(older("float16"), mixed_precision="fp16")


def no_bfloat16():
    return accelerator(older("bfloat16"), mixed_precision="bf16")


def own_precision():
    """bf16 on an accelerator that computes bf16-mixed in its own way, which Accelerate would not use."""
    from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

    from accelkit import Precision

    class Own(FakeXPUAccelerator):
        def make_precision(self, name, device):
            return Precision() if name == "bf16-mixed" else None

    return accelerator(Own(), mixed_precision="bf16")


def older(dtype):
    """A fake XPU that has no autocast to this dtype."""
    from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

    class Older(FakeXPUAccelerator):
        declared_capabilities = type(FakeXPUAccelerator.declared_capabilities)({f"autocast.{dtype}": "none"})

    return Older()


def lazy():
    from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

    class Tracing(FakeXPUAccelerator):
        def step_end(self):
            pass

    return accelerator(Tracing())


def use_cpu():
    os.environ["ACCELERATE_USE_CPU"] = "true"
    return accelerator("fake_xpu")


def other_device():
    os.environ["ACCELERATE_TORCH_DEVICE"] = "meta"
    return accelerator("fake_xpu")


def cpu():
    return accelerator("fake_xpu", cpu=True)


def two_devices():
    accelerator("fake_xpu")
    return accelerator("cpu")


def two_installs():
    install("fake_xpu")
    return install("cpu")


def two_precisions():
    accelerator("fake_xpu", mixed_precision="bf16")
    return accelerator("fake_xpu", mixed_precision="fp16")


def absent():
    return accelerator("cuda")


def unknown():
    return install("fake_xpo")


def optimizer_left_behind():
    chosen = accelerator("fake_xpu")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return chosen.prepare(model.to(chosen.device), optimizer)


def model_elsewhere():
    chosen = accelerator("cpu")
    import accelkit

    return chosen.prepare(torch.nn.Linear(1, 1, device=accelkit.device("fake_xpu")))


def device_map():
    """A model that transformers has distributed over devices: it keeps the map as an attribute."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    model.hf_device_map = {"0": 0, "1": 1}
    return accelerator().prepare_model(model)


def forked():
    from accelerate import notebook_launcher

    install("fake_xpu")
    with contextlib.redirect_stdout(sys.stderr):
        notebook_launcher(forked_training, num_processes=2)
    sys.exit()


def forked_training():
    from accelerate import PartialState

    try:
        print("not refused", PartialState().device, file=sys.__stdout__)
    except AccelkitError as error:
        if os.environ["RANK"] == "0":
            print(type(error).__name__, error, file=sys.__stdout__, flush=True)


def trainer_cpu():
    install("fake_xpu")
    from transformers import TrainingArguments

    return TrainingArguments(output_dir="unused", use_cpu=True, report_to=[]).device


def too_late():
    from transformers import TrainingArguments

    assert TrainingArguments(output_dir="unused", report_to=[]).device.type == "cpu"
    return install("fake_xpu")


if __name__ == "__main__":
    try:
        print("not refused", globals()[sys.argv[1]]())
    except (AccelkitError, ValueError) as error:
        print(type(error).__name__, error)
