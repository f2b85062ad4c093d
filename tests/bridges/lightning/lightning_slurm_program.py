"""A user's program in a step of SLURM: told to end by SIGUSR1, it saves and asks for another turn; in that turn it goes on."""

import os
import signal
import sys

import lightning.pytorch as pl
from device_checking_model import QUIET, loader, make_watched

from accelkit.bridges.lightning import trainer_kwargs

trainer = pl.Trainer(**trainer_kwargs("fake_xpu"), **QUIET, max_epochs=3, logger=False, default_root_dir=sys.argv[1])
model = make_watched(pl, "fake_xpu")
is_first_turn = not os.environ.get("SLURM_RESTART_COUNT")


def tell(*_):
    if is_first_turn and trainer.global_step == 5:
        os.kill(os.getpid(), signal.SIGUSR1)
        trainer.should_stop = True


started_at = []
model.on_train_start = lambda: started_at.append(trainer.global_step)
model.on_train_batch_start = tell
trainer.fit(model, loader())
print(f"from step {started_at[0]} to {trainer.global_step} on {trainer.strategy.root_device}")
