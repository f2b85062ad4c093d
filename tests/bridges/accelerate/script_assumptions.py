"""What Accelerate's own test scripts assume that does not hold here. Each assumption has to be wrong still, else the test fails."""

from __future__ import annotations

import dataclasses

import torch

BOTH = (1, 2)


@dataclasses.dataclass(frozen=True)
class Assumption:
    """A statement of a script that cannot work here, and why.

    Attributes:
        reason: Why the statement cannot work on this device or in this environment.
        raises: Found in the type and text of the error that the statement raises.
        statement: As the script writes it; None if it is the script as a whole.
        when: An expression, in the statement's scope: whether the assumption is made.
        gives: Instead of ``raises``: an expression that holds after the statement, and should not.
        instead: A statement that follows it.
        processes: In jobs of how many processes the statement is reached.
    """

    reason: str
    raises: str = ""
    statement: str | None = None
    when: str = "True"
    gives: str = "True"
    instead: str = "pass"
    processes: tuple[int, ...] = BOTH


@dataclasses.dataclass(frozen=True)
class Script:
    """A script of ``accelerate.test_utils.scripts``.

    Attributes:
        processes: In jobs of how many processes it runs.
        why_not: Why it does not run in the others.
        assumptions: What does not hold.
    """

    assumptions: tuple[Assumption, ...] = ()
    processes: tuple[int, ...] = BOTH
    why_not: str = ""


NO_CUDA = r"CUDA|NVIDIA"
_DATASETS = "datasets and evaluate are not installed, and what they load is on the Hub"
_NO_MODULE = "ModuleNotFoundError: No module named"
_NO_DATASETS = r"No module named '(datasets|evaluate)'"
_HUB = Script((Assumption(_DATASETS, _NO_DATASETS),), (1,), "it ends while it is imported")
_TORCHDATA = "torchdata is not installed"
_NEEDS_TWO = "the script says itself that it needs two devices"
_HAS_NCCL = torch.version.cuda is not None and torch.distributed.is_nccl_available()  # what torch was built with, and no GPU
_BFLOAT16_HOOK = Assumption(
    "torch's DistributedDataParallel takes hooks in bfloat16 only where torch was built with NCCL or XCCL",
    "BF16 all reduce communication hook required CUDA",
    "test_ddp_comm_hook(comm_hook, comm_wrapper, comm_state_option)",
    when="DDPCommunicationHookType.BF16 in (comm_hook, comm_wrapper)",
)

SCRIPTS = {
    "test_cli": Script(),
    "test_ops": Script(),
    "test_sync": Script(),
    "test_script": Script(
        (
            Assumption(
                "MULTI_GPU is taken for CUDA, whose devices are counted; without this the checks of process control would be left out",
                statement="num_processes_per_node = torch.cuda.device_count()",
                gives="num_processes_per_node != state.num_processes",
                instead="num_processes_per_node = state.num_processes",
                processes=(2,),
            ),
            Assumption("MULTI_GPU is taken for CUDA", NO_CUDA, "synchronize_rng_states(['cuda'])", processes=(2,)),
            Assumption(
                "MULTI_GPU is taken for CUDA",
                NO_CUDA,
                "assert are_the_same_tensors(torch.cuda.get_rng_state()), 'RNG states improperly synchronized on GPU.'",
                processes=(2,),
            ),
        )
    ),
    "test_distributed_data_loop": Script(
        (
            Assumption(_TORCHDATA, "StatefulDataLoader is not available", "test_stateful_dataloader(accelerator)"),
            Assumption(_TORCHDATA, "StatefulDataLoader is not available", "test_stateful_dataloader_save_state(accelerator)"),
        ),
        (2,),
        _NEEDS_TWO,
    ),
    "test_ddp_comm_hook": Script(() if _HAS_NCCL else (_BFLOAT16_HOOK,), (2,), _NEEDS_TWO),
    "test_merge_weights": Script(
        (Assumption("the bridge has no FSDP", "UnsupportedError: the bridge to Accelerate does not support this request for FSDP"),)
    ),
    "test_notebook": Script(
        (
            Assumption(
                "notebook_launcher forks, and install() has chosen this process's device already",
                "ChildFailedError",
            ),
        ),
        (1,),
        "it starts its processes itself",
    ),
    "external_deps.test_metrics": Script(
        (
            Assumption(_DATASETS, _NO_MODULE, "import datasets"),
            Assumption(_DATASETS, _NO_MODULE, "import evaluate"),
            Assumption(_DATASETS, _NO_MODULE, "from datasets import load_dataset"),
            Assumption(_DATASETS, "NameError", "datasets.utils.logging.set_verbosity_warning()"),
            Assumption(_DATASETS, "NameError", "datasets.utils.logging.set_verbosity_error()", processes=(2,)),
            Assumption(_DATASETS, "NameError", "test_mrpc(dispatch_batches, split_batches)"),
        )
    ),
    "external_deps.test_checkpointing": _HUB,
    "external_deps.test_performance": _HUB,
    "external_deps.test_peak_memory_usage": _HUB,
    "external_deps.test_ds_multiple_model": _HUB,
}
BY_ANOTHER_LAUNCHER = {
    "external_deps.test_ds_alst_ulysses_sp": "DeepSpeed's sequence parallelism, which the bridge refuses",
    "external_deps.test_zero3_integration": "DeepSpeed's ZeRO, with the package deepspeed",
    "external_deps.test_pippy": "pipelines over several devices of one process, of models from the Hub",
}
"""Scripts that are not started: they need packages that this part of the tests does not install, or the network, to reach any line."""
