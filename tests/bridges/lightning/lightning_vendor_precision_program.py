"""Two processes train in a vendor's precision: ``lightning_vendor_precision_program.py FOLDER``. Each rank leaves in FOLDER what it saw."""

import json
import sys
from pathlib import Path

import lightning.pytorch as pl
from device_checking_model import QUIET
from scaled_training import CLIPPED, NAME, batches, make_module

from accelkit.bridges.lightning import trainer_kwargs

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    arguments = trainer_kwargs("fake_xpu", devices=2, precision=NAME)
    trainer = pl.Trainer(**arguments, **QUIET, max_epochs=2, logger=False, default_root_dir=folder, gradient_clip_val=CLIPPED)
    module = make_module(pl)
    trainer.fit(module, batches())
    found = {"log": trainer.precision_plugin._selected.log, "losses": module.losses}
    found["parameters"] = [float(p.detach().double().sum()) for p in module.parameters()]
    (folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(found))
