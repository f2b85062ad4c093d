"""What the bridge refuses of DeepSpeed inside Lightning. ``lightning_deepspeed_errors_program.py`` prints the texts as JSON.

DeepSpeed uses the fake XPU in this process.
"""

import contextlib
import json
import sys

import lightning.pytorch as pl
from device_checking_model import QUIET, loader, make_watched

import accelkit
from accelkit.bridges.lightning import trainer_kwargs

Strategy = pl.strategies.DeepSpeedStrategy


def lazy():
    class Lazy(type(accelkit.select("fake_xpu").accelerator)):
        def step_end(self):
            """Run what was traced."""

    traced = Lazy()
    traced.name = "fake_xpu"
    trainer_kwargs(traced, devices=2, strategy="deepspeed")


def nvme():
    trainer_kwargs("fake_xpu", devices=2, strategy="deepspeed_stage_3_offload_nvme")


def nvme_in_a_configuration():
    config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}}
    trainer_kwargs("fake_xpu", devices=2, strategy=Strategy(config=config))


def activation_checkpointing():
    trainer_kwargs("fake_xpu", devices=2, strategy=Strategy(stage=3, partition_activations=True, cpu_checkpointing=True))


def float64():
    trainer_kwargs("fake_xpu", devices=2, strategy="deepspeed", precision="64-true")


def precision_plugin():
    trainer_kwargs("fake_xpu", devices=2, strategy="deepspeed", plugins=[pl.plugins.MixedPrecision("bf16-mixed", device="fake_xpu")])


def dtype_that_deepspeed_lacks():
    import deepspeed

    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: False  # as on many CPUs
    given = trainer_kwargs("fake_xpu", devices=1, strategy="deepspeed", precision="16-mixed")
    pl.Trainer(**given, **QUIET, logger=False, max_epochs=1).fit(make_watched(pl, "fake_xpu"), loader())


def imported_for_another_device():
    trainer_kwargs("cpu", devices=2, strategy=Strategy())


CASES = [lazy, nvme, nvme_in_a_configuration, activation_checkpointing, float64, precision_plugin, dtype_that_deepspeed_lacks]

if __name__ == "__main__":
    texts = {}
    with contextlib.redirect_stdout(sys.stderr):
        for case in [*CASES, imported_for_another_device]:
            try:
                case()
                texts[case.__name__] = "no error"
            except accelkit.AccelkitError as error:
                texts[case.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(texts))
